"""Random tiny jobs: a few ranks on one or two hosts, steps full of kernels, copies, calls and collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from tiny_trace import TinyRank

STEP_NS = 20_000
CALLS = ("cudaMalloc", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpyAsync")
RANGES = ("moescope::L0.mb0.experts", "moescope::L1.mb0.dispatch", "DataLoader.next", "anything")


@dataclass(frozen=True)
class Local:
    """What one rank does by itself in one step; times within the step, ns."""

    kernels: tuple[tuple[int, int, int | None, int], ...]
    """start, length, launch (None if not recorded), stream."""
    copies: tuple[tuple[int, int], ...]
    calls: tuple[tuple[str, int, int], ...]
    ranges: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Shared:
    """One collective of one step: (start, length) and rows to every rank, by rank."""

    is_exchange: bool
    spans: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, ...], ...]
    phase: str


@dataclass(frozen=True)
class Job:
    """What every rank does, by step and rank, and what they do together, by step."""

    local: tuple[tuple[Local, ...], ...]
    shared: tuple[tuple[Shared, ...], ...]
    hosts: tuple[str, ...]

    def ranks(self, number: Callable[[int], int] = lambda rank: rank) -> list[TinyRank]:
        """The traces, rank r of the job called ``number(r)``."""
        size = len(self.hosts)
        found = []
        for rank in range(size):
            trace = TinyRank(number(rank), size, self.hosts[rank])
            for step, (local, shared) in enumerate(zip(self.local, self.shared, strict=True)):
                _write_local(trace, local[rank], step * STEP_NS)
                for turn, collective in enumerate(shared):
                    _write_shared(trace, collective, rank, (step, turn), [number(r) for r in range(size)])
                trace.step(step, step * STEP_NS, STEP_NS)
            found.append(trace)
        return found


def _write_local(trace: TinyRank, local: Local, begin: int) -> None:
    for start, length, launched, stream in local.kernels:
        trace.kernel(
            "sgemm", begin + start, length, launched=None if launched is None else begin + launched, stream=stream
        )
    for start, length in local.copies:
        trace.copy(begin + start, length)
    for name, start, length in local.calls:
        trace.call(name, begin + start, length)
    for name, start, length in local.ranges:
        trace.annotate(name, begin + start, length)


def _write_shared(trace: TinyRank, collective: Shared, rank: int, place: tuple[int, int], numbers: list[int]) -> None:
    step, turn = place
    start, length = collective.spans[rank]
    begin = step * STEP_NS + start
    trace.annotate(f"moescope::L0.mb0.{collective.phase}", begin, 2)
    if not collective.is_exchange:
        trace.reduce(begin, length, seq=10 * step + turn, launched=begin + 1)
        return
    order = sorted(range(len(numbers)), key=lambda r: numbers[r])
    sent = [collective.rows[rank][peer] for peer in order]
    received = [collective.rows[peer][rank] for peer in order]
    trace.exchange(begin, length, sent=sent, received=received, seq=10 * step + turn, launched=begin + 1)


def _spans(low: int, high: int, longest: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(0, longest))


_LOCAL = st.builds(
    Local,
    kernels=st.lists(
        st.tuples(
            st.integers(0, STEP_NS),
            st.integers(0, 6000),
            st.none() | st.integers(0, STEP_NS - 2),
            st.sampled_from([7, 8]),
        ),
        max_size=4,
    ).map(tuple),
    copies=st.lists(_spans(0, STEP_NS, 2000), max_size=1).map(tuple),
    calls=st.lists(
        st.tuples(st.sampled_from(CALLS), st.integers(0, STEP_NS - 900), st.integers(0, 900)), max_size=2
    ).map(tuple),
    ranges=st.lists(
        st.tuples(st.sampled_from(RANGES), st.integers(0, STEP_NS - 4000), st.integers(0, 4000)), max_size=1
    ).map(tuple),
)


def _shared(size: int) -> st.SearchStrategy[Shared]:
    row = st.tuples(*[st.integers(0, 3)] * size)
    return st.builds(
        Shared,
        is_exchange=st.booleans(),
        spans=st.tuples(*[_spans(0, STEP_NS - 3000, 3000)] * size),
        rows=st.tuples(*[row] * size),
        phase=st.sampled_from(["dispatch", "combine"]),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Two or three ranks, one or two steps, up to three collectives in each."""
    size, steps = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    local = tuple(tuple(draw(_LOCAL) for _ in range(size)) for _ in range(steps))
    shared = tuple(tuple(draw(st.lists(_shared(size), max_size=3))) for _ in range(steps))
    hosts = ("node0", "node0", draw(st.sampled_from(["node0", "node1"])))[:size]
    return Job(local, shared, hosts)
