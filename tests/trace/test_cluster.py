"""Reading on a real Dask cluster of two worker processes on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_zoo import event, open_files, told, trace

from moescope.cli import main
from moescope.errors import ExitCode, MoescopeError
from moescope.trace import open_directory, reading

distributed = pytest.importorskip("distributed", reason="the package distributed (extra cluster) is not installed")
pytestmark = pytest.mark.filterwarnings("default")

INTERRUPTED = """
import os, signal, sys
from moescope.trace import open_directory
def progress(done, total, what): print(done, total, flush=True); done == 1 and os.kill(os.getpid(), signal.SIGINT)
open_directory(sys.argv[1], scheduler=sys.argv[2], progress=progress)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The scheduler of a cluster of two processes."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six ranks, and nothing read of them."""
    files = {f"rank{rank}.json.gz": trace(event(ts=str(rank)), rank=rank) for rank in range(6)}
    for name, content in files.items():
        open_files(tmp_path, {name: content})
    shutil.rmtree(tmp_path / ".moescope")
    return tmp_path


def test_two_workers_read_what_one_process_reads(folder: Path, address: str) -> None:
    done: list[int] = []
    directory = open_directory(folder, scheduler=address, progress=lambda count, *_: done.append(count))
    assert done == [1, 2, 3, 4, 5, 6]
    from_cluster = told(directory)
    assert told(open_directory(folder, scheduler="tcp://127.0.0.1:9")) == from_cluster  # from the store
    shutil.rmtree(folder / ".moescope")
    assert told(open_directory(folder, workers=1)) == from_cluster


def test_a_command_reads_on_the_cluster(folder: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(folder), "--json", "--scheduler", address]) == ExitCode.DONE
    assert len(json.loads(capsys.readouterr().out)["traces"]) == 6


def test_what_goes_wrong_on_the_cluster_is_said(folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot do its task, here for want of its function."""
    monkeypatch.setattr(reading, "read_job", os.kill)
    with pytest.raises(MoescopeError, match=r"the cluster could not read rank\d.json.gz") as caught:
        open_directory(folder, scheduler=address)
    assert caught.value.code == "cluster-failed"
    assert caught.value.hint


def test_an_interrupt_ends_the_reading_and_not_the_cluster(folder: Path, address: str) -> None:
    arguments = [sys.executable, "-c", INTERRUPTED, str(folder), address]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert run.stderr.rstrip().endswith("KeyboardInterrupt")
    assert run.returncode == -signal.SIGINT
    assert not list(folder.glob(".moescope/trace/*.partial"))
    assert len(open_directory(folder, scheduler=address).ranks) == 6


def test_no_scheduler_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(trace(event()))
    with pytest.raises(MoescopeError) as caught:
        open_directory(tmp_path, scheduler="tcp://127.0.0.1:9")
    assert caught.value.code == "no-scheduler"
    assert os.listdir(tmp_path / ".moescope" / "trace") == []
