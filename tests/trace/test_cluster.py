"""Reading on a real Dask cluster of two worker processes on this machine."""

import shutil
from pathlib import Path

import pytest
from trace_zoo import event, open_files, told, trace

from moescope.errors import MoescopeError
from moescope.trace import open_directory

distributed = pytest.importorskip("distributed", reason="the package distributed (extra cluster) is not installed")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_workers_read_what_one_process_reads(tmp_path: Path) -> None:
    files = {f"rank{rank}.json.gz": trace(event(ts=str(rank)), rank=rank) for rank in range(6)}
    expected = told(open_files(tmp_path, files))
    shutil.rmtree(tmp_path / ".moescope")
    done: list[int] = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        directory = open_directory(tmp_path, scheduler=address, progress=lambda count, *_: done.append(count))
    assert told(directory) == expected
    assert done == [1, 2, 3, 4, 5, 6]
    assert told(open_directory(tmp_path, scheduler="tcp://127.0.0.1:9", progress=None)) == expected  # from the store


def test_no_scheduler_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(trace(event()))
    with pytest.raises(MoescopeError) as caught:
        open_directory(tmp_path, scheduler="tcp://127.0.0.1:9")
    assert caught.value.code == "no-scheduler"
