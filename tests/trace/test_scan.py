"""Blocks: wherever a file is cut, and whoever decodes the blocks, the tables are the same."""

import gzip
import json
import os
import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib
from trace_zoo import event, frame, process, trace

from moescope.trace.crew import Crew, Threads
from moescope.trace.extras import LONGEST_NAME
from moescope.trace.pieces import Piece
from moescope.trace.processes import Processes
from moescope.trace.scan import Scan, scan
from moescope.trace.split import FileSplitter

INDENTS = [None, 0, 2]


def content(indent: int | None = None, nested: object = ({"ph": "X", "ts": 2}, {"ph": "X", "ts": 1})) -> bytes:
    """Fifty events that hold what separates events, and a list of objects after them."""
    events = [process(1, "python")]
    for i in range(50):
        args = {"l": nested, "s": '},{"ph": "X"', "correlation": i}
        name = "größe" if i % 7 else '"},{"'
        events.append(event("kernel", f"{i}.5", "1", name=name, args=args | {"Collective name": "c"}))
    text = trace(*events)[:-1] + ', "tail": [{"id": 0, "name": "n"}, {"id": 1, "name": "n"}]}'
    return (text if indent is None else json.dumps(json.loads(text), indent=indent or None)).encode()


def told(found: Scan | None) -> tuple[object, ...]:
    """Everything that was read, in a form that compares."""
    assert found is not None
    frames = [table.write_json() for table in (frame(found.events), found.comm, found.memory)]
    return (*frames, found.info, found.labels, found.faults, found.num_recorded, found.num_bytes)


WHOLE: dict[int | None, tuple[object, ...]] = {}


@pytest.fixture(scope="module", autouse=True)
def _whole(tmp_path_factory: pytest.TempPathFactory) -> None:
    for indent in INDENTS:
        path = tmp_path_factory.mktemp("whole") / "t.json"
        path.write_bytes(content(indent))
        WHOLE[indent] = told(scan(path))


def test_the_whole_is_read() -> None:
    for told_ in WHOLE.values():
        assert told_[6] == 51
        assert told_[3]["tail"] == [{"id": 0, "name": "n"}, {"id": 1, "name": "n"}]  # type: ignore[index]
        assert not told_[5].counts  # type: ignore[attr-defined]


@given(st.integers(1, 9000), st.sampled_from(INDENTS), st.booleans())
def test_any_block_size_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, size: int, indent: int | None, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.json"
    data = content(indent)
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    assert told(scan(path, block_bytes=size)) == WHOLE[indent]


def test_without_what_isal_does_not_promise_the_same_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(isal_zlib, "_GzipReader")
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(content(), 1))
    for size in (100, 1000, 10_000):
        assert told(scan(path, block_bytes=size)) == WHOLE[None]


@pytest.mark.parametrize("helpers", [0, 1, 2])
def test_several_members_and_what_is_damaged_behind_them(helpers: int, tmp_path: Path) -> None:
    data, path = content(), tmp_path / "t.json.gz"
    members = [gzip.compress(data[at : at + 3000]) for at in range(0, len(data), 3000)]
    with Threads(helpers) if helpers else nullcontext() as crew:
        path.write_bytes(b"".join(members) + bytes(100))
        assert told(scan(path, crew, block_bytes=500)) == WHOLE[None]
        path.write_bytes(b"".join(members[:-1]) + members[-1][:-4])
        cut = scan(path, crew, block_bytes=500)
        path.write_bytes(b"".join(members) + b"junk")
        followed = scan(path, crew, block_bytes=500)
        broken = bytearray(members[1])
        broken[len(broken) // 2] ^= 0x55
        path.write_bytes(members[0] + bytes(broken) + b"".join(members[2:]))
        damaged = scan(path, crew, block_bytes=500)
    assert cut is not None
    assert followed is not None
    assert damaged is not None
    assert cut.events.height == followed.events.height == 50
    assert cut.faults.details["gzip-damaged"] == "cut short"
    assert followed.faults.details["gzip-damaged"] == "followed by bytes that are no gzip data"
    assert damaged.faults.details["gzip-damaged"].startswith("corrupt")
    assert 0 < damaged.events.height < 50


def test_headers_and_padding_that_few_write(tmp_path: Path) -> None:
    data, path = content(), tmp_path / "t.json.gz"
    packed = gzip.compress(data)
    halves = [gzip.compress(data[:4000]), gzip.compress(data[4000:])]
    for whole in (
        packed[:3] + b"\x08" + packed[4:10] + b"n" * 300_000 + b"\0" + packed[10:],  # a name longer than any buffer
        bytes(70_000).join(halves),
        bytes(70_000).join(halves) + bytes(70_000),
    ):
        path.write_bytes(whole)
        assert told(scan(path)) == WHOLE[None]
    path.write_bytes(bytes(70_000).join(halves) + b"junk")
    followed = scan(path)
    assert followed is not None
    assert (followed.events.height, followed.faults.details["gzip-damaged"]) == (
        50, "followed by bytes that are no gzip data"
    )  # fmt: skip


def test_what_one_library_refuses_and_the_other_takes(tmp_path: Path) -> None:
    """A reserved flag in the header, and damage far behind it."""
    events = ", ".join(event(name=f"{random.Random(i).random()}", ts=f"{i}") for i in range(9000))
    packed = bytearray(gzip.compress(trace(events).encode()))
    assert len(packed) > 3 << 15
    packed[3] |= 0x80
    packed[5 << 14] ^= 0x55
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    found = scan(path)
    assert found is None or found.faults.counts["gzip-damaged"] == 1


@pytest.mark.parametrize("kind", [Threads, Processes])
def test_helpers_give_what_one_process_gives(kind: type[Crew], tmp_path: Path) -> None:
    with kind(1) as crew:
        for name, data in (("a.json", content()), ("b.json.gz", gzip.compress(content()))):
            path = tmp_path / name
            path.write_bytes(data)
            assert told(scan(path, crew, block_bytes=700)) == WHOLE[None]


def test_a_damaged_event_costs_itself_alone_in_any_block(tmp_path: Path) -> None:
    data, path = content(nested=[[1], [2]]), tmp_path / "t.json"
    at = data.index(b'"ts": 20.5')
    begin = data.rindex(b'{"ph": "X", "cat"', 0, at)
    path.write_bytes(data[:at] + b"?" + data[at:])
    for size in (1, 100, 1000, 10_000):
        found = scan(path, block_bytes=size)
        assert found is not None
        assert found.faults.counts == {"dropped-events": 1}
        assert found.faults.where == {"dropped-events": f"byte {begin:,}"}
        assert found.events.height == 49


def test_a_bracket_that_ends_nothing_ends_nothing_in_any_block(tmp_path: Path) -> None:
    data, path = content(), tmp_path / "t.json"
    at = data.index(b'{"ph": "X", "cat"', len(data) // 2)
    path.write_bytes(data[:at] + b"], " + data[at:])
    for size in (1, 100, 1000, 10_000):
        found = scan(path, block_bytes=size)
        assert found is not None
        assert found.events.height == 50
        assert set(found.faults.counts) <= {"separators", "junk"}
        assert found.faults.counts


K = event()
LONG = "a" * (17 << 20)
GIANT = {
    "name": (f"{K}, {event(name=LONG, ts='5')}, {K}", "", "", 3, "oversized"),
    "last name": (f"{K}, {event(name=LONG, ts='5')}", "", "", 2, "oversized"),
    "arguments": (f"{K}, {event(args={'l': [0] * (6 << 20)}, ts='5')}, {K}", "", "", 2, "dropped-events oversized"),
    "space": (f"{K}, {' ' * (17 << 20)}{K}", "", "", 2, "oversized"),
    "metadata before": (K, f'"x": "{LONG}", ', "", 1, "oversized"),
    "metadata after": (K, "", f', "x": "{LONG}"', 1, "oversized"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("what", GIANT)
def test_of_what_is_too_long_the_middle_is_left_out(what: str, packed: bool, tmp_path: Path) -> None:
    events, before, after, num_events, codes = GIANT[what]
    text = f'{{{before}"traceEvents": [{events}]{after}, "distributedInfo": {{"rank": 3}}}}'.encode()
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    found = scan(path, block_bytes=1 << 16, largest_bytes=1 << 20)
    assert found is not None
    assert found.events.height == num_events
    assert " ".join(sorted(set(found.faults.counts) - {"long-texts"})) == codes
    assert found.info["distributedInfo"] == {"rank": 3}
    assert frame(found.events)["name"].cast(pl.String).str.len_chars().max() <= LONGEST_NAME


@pytest.mark.parametrize("left", [0, 0.4])
def test_a_file_that_shrinks_while_it_is_read_is_told(left: float, tmp_path: Path) -> None:
    """Blocks are read into memory that held others before: what is gone is not read from there."""
    path, size = tmp_path / "t.json", int(left * len(content()))
    path.write_bytes(content())
    pieces = FileSplitter.pieces

    def cut_meanwhile(splitter: FileSplitter) -> Iterator[Piece]:
        for number, piece in enumerate(pieces(splitter)):
            if number == 1:
                os.truncate(path, size)
            yield piece

    whole = scan(path, block_bytes=len(content()) // 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSplitter, "pieces", cut_meanwhile)
        found = scan(path, block_bytes=len(content()) // 3)
    assert whole is not None
    assert found is not None
    assert 0 < found.events.height < whole.events.height
    assert found.faults.counts["truncated"] >= 1
