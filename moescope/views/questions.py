"""Which questions a folder can answer, which it cannot, and how to record what is lacking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from moescope.align import Contradiction
from moescope.findings.rules_clock import as_hosts_option
from moescope.views.inventory import Inventory
from moescope.views.text import plural, ranges

SHAPES = "torch.profiler.profile(..., record_shapes=True)"
MEMORY = "torch.profiler.profile(..., profile_memory=True)"
DEVICE = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
AGAIN = "copy the damaged files again, or record again and let the profiler stop before the program ends"
HOOKS = "attach the hooks: with observe(model, out=...) as obs, then obs.microbatch() and obs.step()"


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and whether this folder can answer it."""

    question: str
    answer: str
    """``yes``, ``partly`` or ``no``."""
    because: str
    how_to_record: str
    """What to do to answer it fully; empty when it is answered."""


Verdict = tuple[str, str, str]


def questions(inventory: Inventory) -> tuple[Question, ...]:
    """Return every question in the order of diagnosis, each with its answer for ``inventory``."""
    return tuple(Question(question, *rule(inventory)) for question, rule in RULES)


def _of_events(rule: Callable[[Inventory], Verdict]) -> Callable[[Inventory], Verdict]:
    """A rule that rests on the events: ``no`` where there are none, at most ``partly`` where some were lost."""

    @wraps(rule)
    def judged(inventory: Inventory) -> Verdict:
        if not any(trace.num_events for trace in inventory.traces):
            return "no", f"no events could be read of {_ranks(list(inventory.ranks), inventory)}", AGAIN
        answer, because, how = rule(inventory)
        damaged = [trace.rank for trace in inventory.traces if trace.is_incomplete]
        if answer == "yes" and damaged:
            return "partly", f"part of what was recorded on {_ranks(damaged, inventory)} could not be read", AGAIN
        return answer, because, how

    return judged


@_of_events
def _step(inventory: Inventory) -> Verdict:
    bare = [trace.rank for trace in inventory.traces if not trace.steps]
    cpu = [trace.rank for trace in inventory.traces if not trace.num_device_events]
    if bare:
        because = f"no step is marked on {_ranks(bare, inventory)}; the whole file counts as one step"
        return "partly", because, "call prof.step() after every step"
    if cpu:
        because = f"no device events on {_ranks(cpu, inventory)}; the host's threads stand for the device"
        gpu_missing = any(trace.has_launches for trace in inventory.traces)
        return ("partly", because, DEVICE) if gpu_missing else ("yes", because, "")
    steps = {step for trace in inventory.traces for step in trace.steps}
    return "yes", f"{plural(len(steps), 'step')} marked on every rank", ""


@_of_events
def _waits(inventory: Inventory) -> Verdict:
    present = len(inventory.ranks)
    silent = [trace.rank for trace in inventory.traces if not trace.num_collectives]
    if len(silent) == len(inventory.traces):
        return "no", "no communication is recorded", f"profile a step that communicates, with {DEVICE}"
    if present == 1:
        return "no", "the trace of a single rank cannot tell waiting from transfer", "write one trace per rank"
    if inventory.missing_ranks:
        missing = ranges(inventory.missing_ranks)
        because = f"{present} of {inventory.world_size} ranks have a trace; lacking {missing}"
        return "partly", because, "write one trace per rank of the same steps"
    if silent:
        return "partly", f"no communication is recorded on {_ranks(silent, inventory)}", "profile the same steps on all"
    return "yes", f"{plural(present, 'rank')} recorded communication", ""


def _clocks(inventory: Inventory) -> Verdict:
    if len(inventory.ranks) == 1:
        return "yes", "a single rank has a single clock", ""
    if inventory.contradictions:
        return _no_shared_clock(inventory.contradictions[0])
    nameless = [rank for host in inventory.hosts if host.host is None for rank in host.ranks]
    if nameless:
        because = f"the traces of {_ranks(nameless, inventory)} name no host; one shared clock is assumed"
        return (
            "partly",
            because,
            "name the ranks that share a host (as in --hosts 0-3,4-7), or record with torch 2.13 or later",
        )
    if len(inventory.hosts) == 1:
        return "yes", "one host, one clock", ""
    if inventory.telemetry is None or not inventory.telemetry.rows["clock"]:
        because = f"{plural(len(inventory.hosts), 'host')}; offsets follow from the collectives, none was measured"
        return "partly", because, HOOKS
    return "yes", f"{plural(len(inventory.hosts), 'host')} with measured offsets", ""


def _no_shared_clock(found: Contradiction) -> Verdict:
    because = (
        f"{found.num_instances} of {found.num_checked} collectives of host {found.host or 'unnamed'} end on one rank "
        f"up to {found.worst_ns / 1e3:.0f} µs before another has begun: its ranks do not share a clock"
    )
    if len(found.alike) > 1:
        return "no", because, f"name the ranks that share a host: --hosts {as_hosts_option(found.alike)}"
    return "no", because, "name the ranks that share a host with --hosts, or check that the files are of one run"


def _load(inventory: Inventory) -> Verdict:
    if inventory.telemetry is not None and inventory.telemetry.rows["expert_load"]:
        return "yes", "the hooks counted tokens per expert, layer and microbatch", ""
    if any(trace.has_splits for trace in inventory.traces):
        because = "only the rows that each rank sent and received are known, not the experts'"
        return "partly", because, HOOKS
    return "no", "neither token counts nor splits of an all-to-all are recorded", HOOKS


@_of_events
def _layers(inventory: Inventory) -> Verdict:
    without = [trace.rank for trace in inventory.traces if not trace.has_ranges]
    if not without:
        return "yes", "ranges name layer, microbatch and phase", ""
    return "partly", f"no ranges name the layers on {_ranks(without, inventory)}; they follow from the order", HOOKS


@_of_events
def _bandwidth(inventory: Inventory) -> Verdict:
    sizes = {trace.sizes for trace in inventory.traces if trace.num_collectives}
    cut = any(trace.lists_cut for trace in inventory.traces)
    if not sizes:
        return "no", "no communication is recorded", f"profile a step that communicates, with {DEVICE}"
    if "none" in sizes:
        return ("no" if sizes == {"none"} else "partly"), "sizes of collectives are not recorded", SHAPES
    if cut and not (inventory.telemetry is not None and inventory.telemetry.rows["collective"]):
        return "partly", "the profiler cut lists of splits after 30 entries", HOOKS
    if "from shapes" in sizes:
        return "yes", "sizes follow from the shapes of the calling operations", ""
    return "yes", "sizes are recorded with the collectives", ""


@_of_events
def _gemms(inventory: Inventory) -> Verdict:
    without = [trace.rank for trace in inventory.traces if not trace.has_shapes]
    if not without:
        return "yes", "shapes of the operations are recorded", ""
    answer = "no" if len(without) == len(inventory.traces) else "partly"
    return answer, f"shapes are not recorded on {_ranks(without, inventory)}", SHAPES


@_of_events
def _memory(inventory: Inventory) -> Verdict:
    without = [trace.rank for trace in inventory.traces if not trace.has_memory]
    if not without:
        return "yes", "allocations and frees are recorded", ""
    if len(without) < len(inventory.traces):
        return "partly", f"allocations are not recorded on {_ranks(without, inventory)}", MEMORY
    if inventory.telemetry is not None and inventory.telemetry.rows["step"]:
        return "partly", "only each step's peak is known, not what was live there", MEMORY
    return "no", "allocations are not recorded", MEMORY


@_of_events
def _host(inventory: Inventory) -> Verdict:
    with_device = [trace for trace in inventory.traces if trace.num_device_events]
    if not with_device:
        return "no", "no device events; on a CPU run there is no device to wait for", f"on a GPU: {DEVICE}"
    without = [trace.rank for trace in with_device if not trace.has_launches]
    if without:
        because = f"kernel launches are not recorded on {_ranks(without, inventory)}"
        return ("no" if len(without) == len(with_device) else "partly"), because, DEVICE
    return "yes", "launches of kernels are recorded", ""


def _history(inventory: Inventory) -> Verdict:
    telemetry = inventory.telemetry
    if telemetry is None or telemetry.steps is None:
        return "no", "only the profiled steps are recorded", HOOKS
    return "yes", f"the hooks recorded steps {telemetry.steps[0]} to {telemetry.steps[1]}", ""


def _ranks(ranks: list[int], inventory: Inventory) -> str:
    """Return ``all ranks`` or which."""
    if set(ranks) == set(inventory.ranks):
        return "all ranks" if len(inventory.ranks) > 1 else f"rank {ranks[0]}"
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {ranges(ranks)}"


RULES: tuple[tuple[str, Callable[[Inventory], Verdict]], ...] = (
    ("Where does the step of each rank go?", _step),
    ("Who waits for whom, and how long?", _waits),
    ("Do the ranks' clocks agree?", _clocks),
    ("Which experts and ranks are hot?", _load),
    ("Which layer is it?", _layers),
    ("How fast are the transfers?", _bandwidth),
    ("Are matrix products too small?", _gemms),
    ("What fills the memory at its peak?", _memory),
    ("Does the host hold the device back?", _host),
    ("How does it develop over the run?", _history),
)
