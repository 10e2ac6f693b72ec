"""The compiled reader of a block against the typed records: it gives the same, or leaves the block to them.

``MOESCOPE_FUZZ=5000 pytest tests/trace/test_compiled.py`` tries that many damaged blocks instead of a hundred.
"""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_fuzz import damaged
from trace_zoo import event, frame, process

from moescope.trace import by_records, compiled
from moescope.trace.block import Block
from moescope.trace.columns import RawTables
from moescope.trace.decode import NOT_DECODED
from moescope.trace.faults import Faults
from moescope.trace.split import Splitter

SHARED = Path(__file__).parents[3] / "shared" / "traces"
NUM_INPUTS = int(os.environ.get("MOESCOPE_FUZZ", "100"))

pytestmark = pytest.mark.skipif(not compiled.is_available(), reason="the compiled part of the reader was not built")


def tables(block: Block) -> list[object]:
    """Everything that the block holds, as the reader takes it."""
    raw = RawTables(Faults())
    raw.add(block)
    events, comm, memory = frame(raw.events()), raw.comm(), raw.memory()
    return [
        raw.num_recorded, events.to_dict(as_series=False), comm.to_dict(as_series=False),
        memory.to_dict(as_series=False), raw.labels, raw.faults.counts, raw.faults.where, raw.faults.details,
    ]  # fmt: skip


def agrees(data: bytes) -> bool:
    """Whether the compiled code takes ``data``; fails where it then gives something else than the records."""
    found = compiled.decode(data)
    if found is None:
        return False
    expected = by_records.decode(data)
    assert tables(found) == tables(expected)
    return True


def events(*texts: str) -> bytes:
    return f"[{', '.join(filter(str.strip, texts)) or ''.join(texts)}]".encode()


TAKEN = {
    "nothing": "",
    "blanks": "\n\t ",
    "a kernel": event(args={"device": 0, "stream": 7, "correlation": 12, "bytes": 5, "External id": 9}),
    "fractions": event(ts="1700000000000.123", dur="0.5"),
    "beyond three digits": event(ts="5.1236", dur="0.0004"),
    "times as texts": event(ts='"1700000000000.125"', dur='"7"'),
    "odd times": event(ts='"soon"', dur="1e3"),
    "absent times": '{"ph": "X", "name": "k", "pid": 1, "tid": 2}',
    "null times": event(ts="null", dur="null"),
    "overflowed times": event(ts="18446744073709551615", dur="-5"),
    "numbers as texts": event(pid="12", tid="stream 7", args={"stream": "3", "correlation": "x", "device": 1.5}),
    "large numbers": event(args={"correlation": 2**64 - 1, "External id": 2**70, "stream": -(2**63)}),
    "null numbers": event(pid=None, args={"correlation": None, "stream": None}),
    "old ids": event("cpu_op", args={"external id": 5, "device": 0}),
    "old ids without more": event("cpu_op", args={"external id": 5}),
    "both ids": event("cpu_op", args={"external id": 5, "External id": 6, "stream": 0}),
    "a process with a name": event(pid="Spans", tid="PyTorch Profiler"),
    "an operator": event(
        "cpu_op", args={"Input Dims": [[1, 2], []], "Input type": ["float", ""], "Concrete Inputs": ["", "1"]}
    ),
    "a dimension as text": event("cpu_op", args={"Input Dims": "[[1]]"}),
    "no dimension": event("cpu_op", args={"Input Dims": None}),
    "communication": event("kernel", args={"Collective name": "all_to_allv", "In split size": "[1,2]", "Seq": 5}),
    "communication with a separator in a text": event(
        "kernel", args={"Collective name": "}, {", "d": {"Collective name": ""}}
    ),
    "memory in arguments": '{"ph": "i", "name": "x", "args": [{"a": 1}, {"name": "[memory]", "ph": "i", "ts": 7}, {}]},'
    ' {"ph": "i", "name": "[memory]", "ts": 1}',
    "memory of another phase": '{"ph": "i", "name": "[memory]", "ts": 1}, {"ph": "C", "name": "[memory]", "ts": 2}',
    "a long name in two spellings": ", ".join(
        (event(name="A" * 70_000), event(name="A" * 70_000).replace("A", "\\u0041", 1))
    ),
    "a fraction of 40 digits": event(ts='"0.0004999999999999999999999999999999999999"'),
    "communication without a name": event("kernel", args={"Collective name": None}),
    "no arguments": '{"ph": "X", "name": "k", "args": null}',
    "no name": '{"ph": "X", "cat": null, "name": null, "ts": 1, "dur": 1}',
    "escapes": event(name='a "quoted" \\ name\n'),
    "the same name twice": '{"ph": "X", "name": "A", "ts": 1}, {"ph": "X", "name": "\\u0041", "ts": 2}',
    "not ASCII": event(name="Größe").replace("\\u00f6", "ö").replace("\\u00df", "ß"),
    "ranges": '{"ph": "B", "name": "r", "pid": 1, "tid": 1, "ts": 1}, {"ph": "E", "pid": 1, "tid": 1, "ts": 3.5}',
    "memory": '{"ph": "i", "name": "[memory]", "tid": 1, "ts": 5.5, "args": {"Bytes": 8, "Addr": 18446744073709551}}',
    "processes": process(4, "python") + "," + process(0, "GPU 0", "process_labels") + "," + process("Spans", "s"),
    "phase last": '{"name": "k", "args": {"stream": 7}, "ts": 1, "dur": 2, "ph": "X"}',
    "other phases": '{"ph": "s", "id": 5, "args": 7, "cat": 3}, {"ph": "f", "bp": "e"}, {"ph": "C", "name": [1]}',
    "what is skipped": event(a={"b": [1.5e-7, True, False, None, {"c": "\\u00e4"}, [], {}]}),
    "a long name": event(name="n" * 70_000),
    "a long argument": event("cpu_op", args={"Input Dims": [[1] * 600_000]}),
}  # fmt: skip

LEFT = {
    "arguments twice": '{"ph": "X", "args": {"stream": 1, "Collective name": "a"}, "args": {"stream": 2}}',
    "fields twice": '{"ph": "i", "ph": "X", "name": "a", "name": null, "ts": "x", "ts": 4, "dur": 1}',
    "a bad value and a good one": '{"ph": "X", "pid": [1], "pid": 1, "ts": 1}',
    "a dimension twice": '{"ph": "X", "args": {"Input Dims": [1], "Input Dims": [2]}}',
    "a collective twice": '{"ph": "X", "args": {"Collective name": "a", "Collective name": "b"}}',
    "an escaped name of metadata": '{"ph": "M", "name": "process\\u005fname", "pid": 3, "args": {"name": "q"}}',
    "an escaped name of an instant": '{"ph": "i", "name": "\\u005bmemory]", "ts": 5, "args": {"Bytes": 8}}',
    "a number as name of metadata": '{"ph": "M", "name": 1e999}',
    "a surrogate in what is skipped": event(a="k").replace('"a": "k"', '"a": "\\ud800"'),
    "a surrogate in an old id": event(args={"external id": "k"}).replace('"k"}', '"\\udfff"}'),
    "a time beyond floats": event(ts="1e309"),
    "a time of 5000 digits": event(ts="1" * 5000),
    "an old id beyond floats": event(args={"external id": 5}).replace(": 5", ": 1e999"),
    "no list": "1",
    "a phase that is unknown": '{"ph": "XX"}',
    "no phase": '{"name": "k"}',
    "a number as name": '{"ph": "X", "name": 5}',
    "a list as time": event(ts="[1]"),
    "arguments that are a list": '{"ph": "X", "args": []}',
    "an escaped key": '{"ph": "X", "\\u006eame": "k"}',
    "no event": "5",
    "a comma too many": event() + ",",
    "a comma too few": event() + event(),
    "not a number": event(ts="NaN"),
    "leading zeros": event(ts="007"),
    "a control character": event(name="k").replace('"k"', '"\x01"'),
    "a bad escape": event(name="k").replace('"k"', '"\\q"'),
    "half a surrogate": event(name="k").replace('"k"', '"\\ud800"'),
    "too deep": event(a=json.loads("[" * 100 + "]" * 100)),
    "an open list": event(dur="[1"),
    "a list closed as an object": event(a=[1]).replace("[1]", "[1}"),
    "a closing bracket too many": event() + "]",
}


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN.keys())
def test_taken(text: str) -> None:
    assert agrees(events(text))
    assert agrees(
        b" " + events(text, event(), event(name="again")).replace(b": ", b":").replace(b", ", b" ,  ") + b" \n"
    )


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT.keys())
def test_left_to_the_records(text: str) -> None:
    assert not agrees(events(text))
    assert not agrees(events(event(), text))
    # Far from the end, and after what was met before, the compiled code takes other ways.
    assert not agrees(events(event(), event(), text, event(name="again"), event()))


def test_a_text_that_ends_anywhere() -> None:
    whole = events(TAKEN["escapes"], TAKEN["what is skipped"], TAKEN["an operator"])
    for end in range(len(whole)):
        assert not agrees(whole[:end])
        agrees(whole[:end] + b"]")


def test_only_blanks_may_follow() -> None:
    assert agrees(b"[] \r\n\t")
    for byte in (b"\0", b"\x0c", b"\x01", b"x", b","):
        assert not agrees(b"[]" + byte)


def test_texts_made_to_collide_end_soon() -> None:
    """However many different texts a block holds, it is decoded; those that no hash tells apart are left."""
    assert agrees(events(*(event(name=f"k{i}") for i in range(5000))))


def test_bad_utf8_is_left() -> None:
    assert not agrees(events(event(name="k")).replace(b'"k"', b'"\xff"'))
    assert not agrees(events(event(a="k")).replace(b'"k"', b'"\xc3"'))


@given(st.integers(-4 * 10**18, 4 * 10**18), st.integers(0, 10**16))
def test_times_are_exact(start_ns: int, dur_ns: int) -> None:
    texts = [f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03}" for ns in (start_ns, dur_ns)]
    for ts, dur in (texts, [f'"{text}"' for text in texts]):
        for following in ((), (event(), event())):
            found = compiled.decode(events(event(ts=ts, dur=dur), *following))
            assert found is not None
            times = [int.from_bytes(found.times[name].packed[:8], "little", signed=True) for name in ("ts", "dur")]
            assert times == [start_ns, dur_ns]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "bp"))
ARGUMENTS = st.sampled_from(
    ("External id", "external id", "device", "stream", "correlation", "bytes", "Input Dims", "Input type",
     "Concrete Inputs", "Collective name", "dtype", "Seq", "name"),
)  # fmt: skip
USUAL = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXXiMBEsfC"),
        "name": st.sampled_from(("k", "[memory]", "process_name", "é")),
        "ts": st.integers(0, 9),
    },
    optional={
        "cat": st.sampled_from(("kernel", "cpu_op")),
        "dur": st.integers(0, 9) | st.decimals(0, 9, places=3).map(float),
        "pid": st.integers(0, 3) | st.just("Spans"),
        "args": st.dictionaries(ARGUMENTS, st.integers() | st.lists(st.integers()) | st.text() | st.none(), max_size=4),
    },
)


@given(st.lists(USUAL | st.dictionaries(FIELDS, JSON), max_size=4), st.booleans(), st.sampled_from((None, 1, 20)))
def test_any_events(made: list[dict[str, object]], ascii_only: bool, indent: int | None) -> None:
    for times in (1, 3):  # what stands between values is known the second time
        text = json.dumps(made * times, ensure_ascii=ascii_only, indent=indent)
        agrees(text.encode("utf-8", "surrogatepass"))


NUMBERS = st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{0,12})?([eE][+-]?[0-9]{0,3})?[0-9.eE+-]{0,2}", fullmatch=True)


@given(NUMBERS, NUMBERS, NUMBERS, st.sampled_from(("", " ", "\n" + 20 * " ")))
def test_any_numbers(ts: str, stream: str, other: str, blanks: str) -> None:
    """However a number is written, or is none, near the end of the text and far from it."""
    odd = f'{{"ph": "X", "name": "k", "ts":{blanks}{ts}, "args": {{"stream": {stream}{blanks}, "x": {other}}}}}'
    agrees(events(odd))
    agrees(events(event(), odd, odd, event()))


def _blocks(name: str) -> list[bytes]:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the folder of recorded traces is absent")
    return [bytes(piece.as_list()) for piece in Splitter(path, 1 << 16).pieces()]


@pytest.mark.parametrize(
    "name", ["dlrm8/rank0_trace.json.gz", "malformed/minified/rank0_trace.json.gz", "gloo_moe_ep4/rank0_trace.json.gz"]
)
def test_damaged_blocks(name: str) -> None:
    blocks = _blocks(name)
    taken = sum(map(agrees, blocks))
    assert taken == len(blocks)
    for seed in range(NUM_INPUTS):
        _, bad = damaged(random.Random(seed).choice(blocks), seed)
        try:
            agrees(bad)
        except NOT_DECODED as error:
            pytest.fail(f"seed {seed}: taken, although {error}")


def test_recorded_traces_are_taken() -> None:
    """Whatever profilers wrote: no block of a recorded trace that is not damaged is left."""
    if not SHARED.exists():
        pytest.skip("the folder of recorded traces is absent")
    for path in sorted(SHARED.glob("*/*.json.gz")):
        for piece in Splitter(path, 1 << 20).pieces():
            assert compiled.decode(piece.as_list()) is not None, (path, piece.offset)
