"""The store: what is kept, when it is used again, and where it lies."""

import errno
import json
import os
from pathlib import Path

import polars as pl
import pytest
from trace_zoo import event, open_files, told, trace

from moescope.errors import InputUnreadableError, MoescopeError
from moescope.trace import EVENT_SCHEMA, fingerprint, open_directory
from moescope.trace.model import COMM_SCHEMA, MEMORY_SCHEMA

ARGS = {
    "correlation": 5,
    "External id": 9,
    "device": 3,
    "stream": 22,
    "Input Dims": [[2, 3], []],
    "Input type": ["float", "Scalar"],
    "Concrete Inputs": ["", "[1, 2]"],
    "Collective name": "all_to_allv",
    "dtype": "BFloat16",
    "In msg nelems": 6,
    "Out msg nelems": 8,
    "Group size": 2,
    "Seq": 4,
    "In split size": "[1, 2]",
    "Out split size": [3, 1],
    "Process Group Name": "20",
    "Process Group Description": "ep",
    "Process Group Ranks": "[0, ..., ...]",
}
FREE = {"Bytes": -8, "Addr": 2**64 - 1, "Total Allocated": 1, "Device Type": 1, "Device Id": 3}
MEMORY = json.dumps({"ph": "i", "name": "[memory]", "tid": 4, "ts": 2.5, "args": FREE})
FILES = {
    "rank0.json": trace(event("cpu_op", "5"), event(args=ARGS), MEMORY, event("gpu_memcpy", "0.5", args={"bytes": 64})),
    "rank1.json.gz": trace(event(), rank=1, host_name="node1"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    open_files(tmp_path, FILES)
    return tmp_path


def _stored(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / ".moescope" / "trace").iterdir()}


def test_events_have_the_columns_of_the_contract(folder: Path) -> None:
    one = open_directory(folder).ranks[0]
    events = one.events()
    assert dict(events.schema) == EVENT_SCHEMA
    assert events.row(1) == (
        1, 1000, 2000, "kernel", "compute", "k", 0, 7, 3, 22, 5, 9, None,
        "[[2, 3], []]", '["float", "Scalar"]', '["", "[1, 2]"]',
    )  # fmt: skip
    assert events["index"].to_list() == [3, 1, 0]
    assert events["bytes"].to_list() == [64, None, None]
    assert events["device"].to_list() == [0, 3, None]


def test_communication_and_memory_have_the_columns_of_the_contract(folder: Path) -> None:
    one = open_directory(folder).ranks[0]
    assert dict(one.comm_args().schema) == COMM_SCHEMA
    assert one.comm_args().row(0) == (
        1, "all_to_allv", "BFloat16", 6, 8, 2, 4, None, None, "20", "ep", None, [1, 2], [3, 1], True,
    )  # fmt: skip
    assert dict(one.memory().schema) == MEMORY_SCHEMA
    assert one.memory().row(0) == (2500, 4, -8, 2**64 - 1, 1, None, 1, 3)


def test_columns_and_categories_can_be_chosen(folder: Path) -> None:
    one = open_directory(folder).ranks[0]
    some = one.events(["name", "start_ns"], categories=["kernel", "cpu_op"])
    assert some.columns == ["name", "start_ns"]
    assert some["start_ns"].to_list() == [1000, 5000]
    assert one.events([], categories=["sync"]).height == 0


def test_reopening_reads_metadata_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _stored(folder)
    for name in ("scan_parquet", "read_parquet"):
        monkeypatch.setattr(pl, name, None)
    directory = open_directory(folder, progress=lambda *_: pytest.fail("a file was read again"))
    assert [(t.rank, t.host, t.num_events, t.world_size) for t in directory.ranks] == [
        (0, None, 3, 4),
        (1, "node1", 1, 4),
    ]
    assert _stored(folder) == before


def test_a_changed_file_is_read_again_and_its_old_entry_goes(folder: Path) -> None:
    before, mark = _stored(folder), fingerprint(folder)
    (folder / "rank1.json.gz").unlink()
    read: list[tuple[int, int, str]] = []
    open_files(folder, {"rank1.json": trace(event(), event(ts="7"), rank=1)}, progress=lambda *a: read.append(a))
    assert read == [(2, 2, "rank1.json")]
    (folder / "rank1.json").write_text(trace(event(ts="8"), rank=1))
    assert told(open_directory(folder)).endswith("1.0 compute 8000+2000")
    entries = {name.partition(".")[0] for name in _stored(folder)}
    assert len(entries) == 3  # of the two current files, and of the one that is gone
    assert entries > {name.partition(".")[0] for name in before}
    assert fingerprint(folder) != mark


def test_a_damaged_entry_is_written_again(folder: Path) -> None:
    for path in (folder / ".moescope" / "trace").iterdir():
        if path.name.endswith(".json"):
            path.write_text("{")
        elif ".events." in path.name:
            path.unlink()
    assert told(open_directory(folder)).endswith("1.0 compute 1000+2000")


DAMAGE = {
    "a list": "[1, 2]",
    "nothing": "{}",
    "a trace without its fields": '{"is_trace": true, "file": "rank0.json"}',
    "parts that are none": '{"is_trace": false, "file": "rank0.json", "parts": [1]}',
    "another file's": '{"is_trace": false, "file": "other.json"}',
    "nested without end": "[" * 10**5,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_metadata_that_are_none_are_written_again(damage: str, folder: Path) -> None:
    before = told(open_directory(folder))
    for path in (folder / ".moescope" / "trace").glob("*.json"):
        path.write_text(DAMAGE[damage])
    assert told(open_directory(folder)) == before
    open_directory(folder, progress=lambda *_: pytest.fail("a file was read again"))


@pytest.mark.parametrize("table", ["events", "comm", "memory"])
def test_a_table_that_is_none_is_written_again(table: str, folder: Path) -> None:
    before = told(open_directory(folder))
    for path in (folder / ".moescope" / "trace").glob(f"*.{table}.parquet"):
        path.write_bytes(b"PAR1 no table PAR1")
    directory = open_directory(folder)
    assert told(directory) == before
    assert {len(trace.comm_args()) + len(trace.memory()) for trace in directory.ranks} == {2, 0}


def test_a_table_damaged_under_its_old_state_costs_one_run(folder: Path) -> None:
    before = told(open_directory(folder))
    (one, other) = open_directory(folder).ranks
    path = one.entry.table("events")
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(InputUnreadableError) as caught:
        told(open_directory(folder))
    assert caught.value.code == "store-damaged"
    assert other.events().height == 1
    assert told(open_directory(folder)) == before


def test_a_full_disk_sends_the_store_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    written = pl.DataFrame.write_parquet
    refused = []

    def full(frame: pl.DataFrame, path: Path, **options: bool) -> None:
        if tmp_path / "cache" in path.parents:
            return written(frame, path, **options)
        refused.append(path)
        raise pl.exceptions.ComputeError("No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    directory = open_files(tmp_path / "in", FILES)
    assert refused
    assert str(tmp_path / "cache") in directory.notes[0]
    assert told(directory).endswith("1.0 compute 1000+2000")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in" / "cache2"))
    with pytest.raises(OSError, match="No space left") as caught:
        open_directory(tmp_path / "in")
    assert caught.value.errno == errno.ENOSPC


def test_a_folder_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / os.fsdecode(b"in\xff")
    directory = open_files(folder, FILES)
    assert told(directory) == told(open_directory(folder))
    assert r"in\xff" in directory.notes[0]


def test_a_folder_that_is_read_only_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rank0.json").write_text(trace(event()))
    folder.chmod(0o555)
    try:
        directory = open_directory(folder)
        assert told(directory) == told(open_directory(folder)) == "0.0 compute 1000+2000"
        assert os.listdir(folder) == ["rank0.json"]
        assert str(tmp_path / "cache") in directory.notes[0]
    finally:
        folder.chmod(0o755)


def test_one_file_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "odd.name").write_text(trace(event(), rank=3))
    assert told(open_directory(tmp_path / "odd.name")) == "3.0 compute 1000+2000"


def test_ranks_by_the_users_expression(tmp_path: Path) -> None:
    files = dict.fromkeys(["node1_gpu3/t.json", "node1_gpu12/t.json"], trace(event(), rank=None))
    directory = open_files(tmp_path, files, rank_regex=r"gpu(\d+)")
    assert [t.rank for t in directory.ranks] == [3, 12]
    for regex in ("(", "gpu"):
        with pytest.raises(MoescopeError, match="rank-regex"):
            open_directory(tmp_path, rank_regex=regex)


def test_the_users_expression_corrects_a_name_but_not_the_content(tmp_path: Path) -> None:
    """``rank0`` counts within the node; what the expression does not find is no rank, whatever else the name holds."""
    nameless = dict.fromkeys(["gpu8_rank0.json", "gpu9_rank1.json", "rank2.json"], trace(event(), rank=None))
    directory = open_files(tmp_path, nameless | {"gpu3.json": trace(event(), rank=5)}, rank_regex=r"gpu(\d+)")
    assert [t.rank for t in directory.ranks] == [5, 8, 9]
    assert [(p.file, p.code) for p in directory.problems] == [("rank2.json", "rank-unknown")]


def test_the_users_patterns_come_first(tmp_path: Path) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(
        '[[kernel]]\nkind = "wait"\nmatch = ["^my_barrier"]\n[[range]]\nkind = "communication"\nmatch = ["^mine:"]\n'
        '[categories]\nkernel = ["npu_task"]\n'
    )
    files = {
        "t/rank0.json": trace(event(name="my_barrier_nccl"), event("npu_task"), event("annotation", name="mine:x"))
    }
    assert told(open_files(tmp_path, files, patterns=table)).startswith("0.0 wait 1000+2000, compute 1000+2000")
    assert told(open_directory(tmp_path / "t")).startswith("0.0 communication 1000+2000, other")
    for bad in (
        "[[kernel]",
        '[[kernel]]\nkind = "fast"\nmatch = []',
        "[kernels]",
        '[[range]]\nkind = "wait"\nmatch = ["("]',
        '[[range]]\nkind = "wait"\nmatch = [5]',
        '[[process]]\ncategory = "kernel"\nprocess = "("',
        '[[process]]\ncategory = "kernel"\nprocess = "p"\nname = "n"',
        "kernel = 5",
        "[kernel]",
        "categories = 5",
        "[categories]\nkernel = 5",
    ):
        table.write_text(bad)
        with pytest.raises(MoescopeError) as caught:
            open_directory(tmp_path / "t", patterns=table)
        assert caught.value.code == "bad-patterns"


def test_what_a_killed_reader_left_goes_with_the_next_reading(folder: Path) -> None:
    store = folder / ".moescope" / "trace"
    entry = next(store.glob("*.events.parquet"))
    old, young = (store / f"{entry.name}.{pid}.partial" for pid in (1, 2))
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    entry.unlink()
    open_directory(folder)
    assert (old.exists(), young.exists()) == (False, True)
