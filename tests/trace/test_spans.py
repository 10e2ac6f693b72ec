"""Ranges recorded as two events are the complete events they stand for, wherever the file is cut."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_zoo import frame

from moescope.trace.scan import scan

Span = tuple[int, int, int]
"""Thread, start and end in nanoseconds."""


@st.composite
def nested(draw: st.DrawFn, thread: int = 0, start: int = 0, end: int = 10_000_000, depth: int = 3) -> list[Span]:
    """Ranges of one thread that lie beside or inside each other."""
    cuts = sorted(draw(st.sets(st.integers(start + 1, end - 1), max_size=6))) if end - start > 10 else []
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    inner = [
        inside for a, b in spans if depth and draw(st.booleans()) for inside in draw(nested(thread, a, b, depth - 1))
    ]
    return [(thread, a, b) for a, b in spans] + inner


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def as_pairs(spans: list[Span], named: bool) -> list[str]:
    """Begin and end events in order of time; where ranges touch, the end comes first."""
    events = []
    for thread, start, end in spans:
        where = {"pid": 1, "tid": thread, "cat": "kernel", "name": f"{start}"}
        begin = {"ph": "B", **where, "args": {"device": 3}}
        finish = {"ph": "E", "pid": 1, "tid": thread, "args": {"correlation": start}} | (
            {"name": f"{start}"} if named else {}
        )
        events += [(start, 1, -end, begin), (end, 0, -start, finish)]
    ordered = sorted(events, key=lambda event: event[:3])
    return [f'{json.dumps(event)[:-1]}, "ts": {_us(time)}}}' for time, _, _, event in ordered]


@given(nested(), nested(thread=1), st.booleans(), st.integers(50, 4000))
def test_pairs_are_the_ranges_they_stand_for(
    tmp_path_factory: pytest.TempPathFactory, one: list[Span], two: list[Span], named: bool, block_bytes: int
) -> None:
    path: Path = tmp_path_factory.mktemp("t") / "t.json"
    spans = one + two
    path.write_text(f'{{"traceEvents": [{", ".join(as_pairs(spans, named))}]}}')
    found = scan(path, block_bytes=block_bytes)
    assert found is not None
    assert not found.faults.counts
    rows = frame(found.events).select("tid", "ts_ns", "dur_ns", "correlation", "device").rows()
    assert sorted(rows) == sorted((thread, a, b - a, a, 3) for thread, a, b in spans)
    assert found.num_recorded == 2 * len(spans)
    assert frame(found.events)["index"].n_unique() == len(spans)
