"""Reading memory snapshots: plain data alone, whatever a file claims."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_snapshot import ADAM, LINEAR, TinySnapshot

from moescope.trace.plain_pickle import NotPlainError, load_plain
from moescope.trace.snapshots import MAX_ROWS, open_snapshots, parse


class Runs:
    """What an attacker's object does when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch pwned",)


def plain(content: bytes, folder: Path, *, apart: bool = False) -> Any:
    """What a file with ``content`` holds; ``apart``: read as a large one."""
    file = folder / "x.pickle"
    file.write_bytes(content)
    return load_plain(file, small_bytes=-1 if apart else 1 << 20)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(PLAIN, st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_back(tmp_path_factory: pytest.TempPathFactory, data: object, protocol: int) -> None:
    assert plain(pickle.dumps(data, protocol), tmp_path_factory.mktemp("p")) == data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(Runs()), "instruction STACK_GLOBAL"),
        (pickle.dumps({"segments": [Runs()]}), "instruction STACK_GLOBAL"),
        (pickle.dumps(Runs(), 2), "instruction GLOBAL"),
        (b"cos\nsystem\n(S'touch pwned'\ntR.", "instruction GLOBAL"),
        (b"(S'touch pwned'\nios\nsystem\n.", "instruction"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"Pid\n.", "instruction PERSID"),
        (pickle.dumps(slice(1, 2)), "instruction"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.", "damaged"),  # bytes of 4 EiB
        (b"\x80\x04\x8b" + struct.pack("<i", -1) + b".", "damaged"),
        (b"\x80\x04h\x05.", "damaged"),  # from a memo that is not there
        (b"\x80\x04.", "damaged"),
        (b"\x80\x63N.", "damaged"),
        (b"", "damaged"),
        (b"not a pickle", "damaged"),
    ],
)
def test_hostile_files_run_nothing(content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlainError, match=said):
        plain(content, tmp_path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("data", [{"a": [1, 2.5, None, True, ("x", b"y")], "b": {}}, [], "text", 1 << 100])
def test_large_files_are_read_apart(data: object, tmp_path: Path) -> None:
    assert plain(pickle.dumps(data), tmp_path, apart=True) == data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(Runs()), "names posix.system|names nt.system"),
        (b"cos\nsystem\n(S'touch pwned'\ntR.", "names os.system"),
        (b"(S'touch pwned'\nios\nsystem\n.", "names os.system"),
        (b"\x80\x02\x82\x01.", "damaged"),
        (b"Pid\n.", "refers to 'id'"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.", "damaged"),
        (b"\x80\x04]r\xff\xff\xff\x3f.", "damaged.*MemoryError"),  # a memo of 2 ** 30 entries
        (b"", "damaged"),
    ],
)
def test_hostile_large_files_run_nothing(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlainError, match=said):
        plain(content, tmp_path, apart=True)
    assert not (tmp_path / "pwned").exists()


def test_a_frame_asks_for_no_memory(tmp_path: Path) -> None:
    """It claims 8 EiB."""
    assert plain(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f]\x94.", tmp_path) == []


def test_a_memo_index_asks_for_no_memory(tmp_path: Path) -> None:
    """The unpickler in C makes room for all indices below."""
    assert plain(b"\x80\x04]r\xff\xff\xff\x7f.", tmp_path) == []


def test_deep_nesting_is_read_or_refused(tmp_path: Path) -> None:
    depth = 100_000
    found = plain(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".", tmp_path)
    assert isinstance(found, list)


def test_a_file_past_the_limit_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(pickle.dumps(b"1234567890"))
    with pytest.raises(NotPlainError, match="read at most"):
        load_plain(file, max_bytes=5)


def tiny() -> TinySnapshot:
    snapshot = TinySnapshot()
    snapshot.segment(1000, 1000, [(600, "active_allocated", LINEAR), (400, "inactive", ())])
    snapshot.act("alloc", 1000, 600, LINEAR)
    return snapshot


def test_tables_of_a_snapshot(tmp_path: Path) -> None:
    tiny().write(tmp_path / "rank3_memory_snapshot.pickle")
    (found,), problems = open_snapshots(tmp_path, [0, 3])
    assert problems == []
    assert found.rank == 3
    assert found.segments.rows() == [(0, 1000, 1000, 2)]
    assert found.blocks.rows() == [
        (0, 0, 1000, 600, 592, "active_allocated", 0, ""),
        (0, 0, 1600, 400, 392, "inactive", -1, ""),
    ]
    assert found.actions.rows() == [(0, "alloc", 1000, 600, 1_700_000_000_000_000, 0, "")]
    assert found.stacks == (tuple(LINEAR),)


def test_equal_stacks_are_kept_once() -> None:
    snapshot = tiny()
    snapshot.act("alloc", 5000, 8, ADAM)
    snapshot.act("alloc", 6000, 8, LINEAR)
    assert parse(snapshot.data(), 0, "x").actions["frames"].to_list() == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "ranks", "rank"),
    [
        ("rank7.pickle", [0, 1], 7),
        ("memory/rank_2/snapshot.pickle", [0, 1], 2),
        ("snapshot.pkl", [5], 5),
    ],
)
def test_whose_snapshot_it_is(name: str, ranks: list[int], rank: int, tmp_path: Path) -> None:
    tiny().write(tmp_path / name)
    found, _ = open_snapshots(tmp_path, ranks)
    assert [snapshot.rank for snapshot in found] == [rank]


def test_files_that_cannot_be_used_are_said_and_others_passed_over(tmp_path: Path) -> None:
    tiny().write(tmp_path / "nobody.pickle")
    (tmp_path / "rank0_bad.pickle").write_bytes(pickle.dumps(Runs()))
    (tmp_path / "rank1_cut.pickle").write_bytes(pickle.dumps(tiny().data())[:80])
    (tmp_path / "config.pickle").write_bytes(pickle.dumps({"lr": 1}))
    tiny().write(tmp_path / ".moescope/rank0.pickle")
    found, problems = open_snapshots(tmp_path, [0, 1])
    assert found == []
    assert [problem.file for problem in problems] == ["nobody.pickle", "rank0_bad.pickle", "rank1_cut.pickle"]
    assert "does not tell its rank" in problems[0].what


@pytest.mark.parametrize(
    "damage",
    [
        {"segments": [1]},
        {"segments": [{"address": "x", "total_size": 1, "blocks": []}]},
        {"segments": [{"address": 1, "total_size": 1 << 70, "blocks": []}]},
        {"segments": [{"address": 1, "total_size": -1, "blocks": []}]},
        {"segments": [{"address": 1, "total_size": 1, "blocks": [{}]}]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": None, "size": 1}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "frames": [{"line": 1}]}]]},
        {"segments": [], "device_traces": 5},
    ],
)
def test_fields_that_are_not_what_they_should_be(damage: dict[str, Any]) -> None:
    with pytest.raises(NotPlainError, match="no snapshot"):
        parse(damage, 0, "x")


def test_shared_lists_cannot_claim_any_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ROWS > 1_000_000
    monkeypatch.setattr("moescope.trace.snapshots.MAX_ROWS", 50)
    blocks = [{"size": 1, "address": 1, "state": "inactive", "frames": []}] * 20
    segment = {"address": 1, "total_size": 20, "blocks": blocks}
    with pytest.raises(NotPlainError, match="more than 50"):
        parse({"segments": [segment] * 20}, 0, "x")
