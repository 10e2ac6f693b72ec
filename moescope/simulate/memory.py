"""What one rank's allocator did: a caching allocator that hands freed blocks of a size out again.

Outputs of forward kernels live until the backward pass has left their layer, other outputs for the next few
operations. Parameters, gradients and optimizer state are there from the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from moescope.simulate.config import SimConfig
from moescope.simulate.engine import Record
from moescope.simulate.faults import NearFullMemory
from moescope.simulate.groups import Groups
from moescope.simulate.program import Exchange, Kernel, Op, Transfer
from moescope.simulate.step import dense_parameters, expert_parameters

_ROUND_BYTES = 2 << 20
_FIRST_ADDRESS = 0x7F00_0000_0000
_BRIEF = 3
"""Operations that a short-lived output outlives its own."""
_CONTEXT_BYTES = 600 << 20
"""What the driver keeps of the device's memory."""


Place = tuple[int | None, int | None]
"""Microbatch and layer."""
Block = tuple[int, int]
"""Address and bytes."""


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One allocation, or one release (negative bytes), just before operation ``index`` computes."""

    index: int
    num_bytes: int
    address: int
    allocated: int
    """In total, after it."""


@dataclass(slots=True)
class _Allocator:
    allocated: int
    top: int = _FIRST_ADDRESS
    free: dict[int, list[int]] = field(default_factory=dict)
    events: list[MemoryEvent] = field(default_factory=list)

    def take(self, index: int, num_bytes: int) -> Block:
        """Allocate; returns (address, bytes)."""
        size = -(-num_bytes // _ROUND_BYTES) * _ROUND_BYTES
        blocks = self.free.get(size)
        if blocks:
            address = blocks.pop()
        else:
            address, self.top = self.top, self.top + size
        self.allocated += num_bytes
        self.events.append(MemoryEvent(index, num_bytes, address, self.allocated))
        return address, num_bytes

    def give(self, index: int, block: Block) -> None:
        """Release what :meth:`take` returned."""
        address, num_bytes = block
        self.free.setdefault(-(-num_bytes // _ROUND_BYTES) * _ROUND_BYTES, []).append(address)
        self.allocated -= num_bytes
        self.events.append(MemoryEvent(index, -num_bytes, address, self.allocated))


@dataclass(frozen=True, slots=True)
class RankMemory:
    """All events of one rank, and what its allocator holds of the device's memory."""

    events: list[MemoryEvent]
    reserved: int
    peak: int


def rank_memory(config: SimConfig, groups: dict[str, Groups], records: Sequence[Record], rank: int) -> RankMemory:
    """Replay the allocations of ``rank``; the run is warm, so that the allocator no longer grows."""
    static = state_bytes(config, rank)
    allocator = _Allocator(static)
    kept: dict[Place, list[Block]] = {}
    reached: dict[int | None, Place] = {}
    brief: deque[Block] = deque()
    for index, record in enumerate(records):
        op = record.op
        for place in _passed(op, reached):
            for block in kept.pop(place, []):
                allocator.give(index, block)
        while len(brief) > _BRIEF:
            allocator.give(index, brief.popleft())
        num_bytes = output_bytes(op, groups, rank)
        if num_bytes:
            needed = _kept_until(op)
            home = brief if needed is None else kept.setdefault(needed, [])
            home.append(allocator.take(index, num_bytes))
    peak = max((e.allocated for e in allocator.events), default=static)
    return _filled(config, rank, RankMemory(allocator.events, static + allocator.top - _FIRST_ADDRESS, peak))


def _kept_until(op: Op) -> Place | None:
    """The microbatch and layer whose backward pass still needs what an operation allocates."""
    if isinstance(op, Transfer):
        return None if op.gradient else (op.microbatch, op.layer)
    stays = isinstance(op, Kernel | Exchange) and op.kept and op.span is not None
    return (op.span.microbatch, op.span.layer) if stays and op.span else None


def _passed(op: Op, reached: dict[int | None, Place]) -> list[Place]:
    """Layers that the backward pass has left by ``op``; ``reached`` holds the layer it is in, by microbatch."""
    if op.span is None or not op.span.backward:
        passed = list(reached.values())
        reached.clear()
        return passed
    here = (op.span.microbatch, op.span.layer)
    before = reached.get(op.span.microbatch, here)
    reached[op.span.microbatch] = here
    return [before] if before != here else []


def _filled(config: SimConfig, rank: int, memory: RankMemory) -> RankMemory:
    """The same with so much more static memory that the peak is where a fault says."""
    for fault in config.faults:
        if isinstance(fault, NearFullMemory) and fault.rank in {rank, -1}:
            more = max(int(fault.share * config.device.memory_bytes) - memory.peak, 0)
            events = [MemoryEvent(e.index, e.num_bytes, e.address, e.allocated + more) for e in memory.events]
            limit = config.device.memory_bytes - _CONTEXT_BYTES
            memory = RankMemory(events, max(min(memory.reserved + more, limit), memory.peak + more), memory.peak + more)
    return memory


def output_bytes(op: Op, groups: dict[str, Groups], rank: int) -> int:
    """Bytes that an operation allocates on ``rank``."""
    if isinstance(op, Exchange):
        index = groups["ep"].of(rank)
        member = groups["ep"].members[index].tolist().index(rank)
        return int(op.sent[0, index, :, member].sum()) * op.row_bytes
    if isinstance(op, Transfer):
        return 0 if op.sends else op.num_bytes
    if isinstance(op, Kernel) and op.output is not None:
        rows, width = op.output
        if rows == "R":
            rows = 0 if op.rows is None else int(op.rows[rank])
        return int(rows) * width
    return 0


def parameters_of(config: SimConfig, rank: int) -> int:
    """Parameters that a rank holds: those of its pipeline stage."""
    stage = config.stage_of(rank) if config.pipeline > 1 else None
    return dense_parameters(config, stage) + expert_parameters(config, stage)


def state_bytes(config: SimConfig, rank: int) -> int:
    """Parameters and gradients in bfloat16, optimizer state in float32 spread over the ranks (of a stage)."""
    parameters = parameters_of(config, rank)
    return 4 * parameters + 12 * parameters // config.stage_ranks
