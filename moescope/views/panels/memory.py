"""Panels about memory beside the peaks: tokens and headroom, trades, peaks of all steps, allocator snapshots."""

from __future__ import annotations

from moescope.views.model import Analysis
from moescope.views.model.memory import MemorySnapshot, TokenMemory
from moescope.views.panels import Cell, Column, Empty, Panel, Table
from moescope.views.text import count, duration, percent, plural, size

NO_TOKENS = Empty(
    "Peaks and received tokens of at least four steps or ranks are needed, with tokens that vary, to tell what a token "
    "takes.",
    "Train inside moescope_hooks.observe(model, out=RUN), which records both for every step.",
)
NO_TRADES = Empty(
    "No recomputation with memory events and no copies to the host that come back were seen.",
    "Record with profile_memory=True on a run that recomputes activations or offloads them.",
)
NO_PEAKS = Empty(
    "There is no telemetry of the steps' memory peaks.",
    "Train on a GPU inside moescope_hooks.observe(model, out=RUN).",
)
NO_SNAPSHOTS = Empty(
    "There is no memory snapshot of torch's allocator beside the traces.",
    "Call torch.cuda.memory._record_memory_history() before and _dump_snapshot('rank0_memory.pickle') after the step, "
    "on every rank, and put the files into the folder.",
)
NO_DRIVER_CALLS = Empty("No call of the driver's allocator was recorded inside the profiled steps.", "")
TRADES = {"recompute": "recomputation", "offload": "offloading"}


def tokens_panel(analysis: Analysis) -> Panel:
    """Bytes per received token, and the tokens at which each rank runs out."""
    key, title = "memorytokens", "Memory per token"
    question = "How many more tokens can a rank receive before its memory runs out?"
    rows = analysis.memory_use.tokens
    if not rows:
        return Panel(key, title, question, empty=NO_TOKENS)
    columns = (
        Column("rank", "id"),
        Column("most tokens received", "count"),
        Column("over the mean rank's", "factor"),
        Column("peak over the mean rank's", "factor"),
        Column("headroom", "bytes"),
        Column("runs out at", "count"),
        Column("at least", "count"),
        Column("at most", "count"),
    )
    body = tuple(
        (t.rank, t.tokens, t.tokens_over_mean, t.peak_over_mean, t.headroom_bytes, t.tokens_at_limit,
         t.tokens_at_limit_low, t.tokens_at_limit_high)
        for t in rows
    )  # fmt: skip
    caption = "Tokens of a rank's fullest microbatch, summed over layers; headroom: capacity less the reserved peak."
    return Panel(key, title, question, _tokens_reading(rows), (Table("memorytokens", columns, body, caption),))


def _tokens_reading(rows: tuple[TokenMemory, ...]) -> str:
    first = rows[0]
    margin = (first.bytes_per_token_high - first.bytes_per_token_low) / 2
    how = "a rank's own steps" if first.within_ranks else "the ranks"
    text = (
        f"A received token takes {size(first.bytes_per_token)} ± {size(margin)} of memory, fitted to "
        f"{plural(first.num_points, 'point')} of {how}"
    )
    limited = [row for row in rows if row.tokens_at_limit is not None]
    if limited:
        soonest = min(limited, key=lambda row: (row.tokens_at_limit or 0.0) / max(row.tokens, 1.0))
        more = (soonest.tokens_at_limit or 0.0) / max(soonest.tokens, 1.0) - 1
        text += (
            f". Rank {soonest.rank} runs out first, at {count(round(soonest.tokens_at_limit or 0.0))} tokens: "
            f"{percent(more)} more than it received at most"
        )
    return text + "."


def trades_panel(analysis: Analysis) -> Panel:
    """What recomputation and offloading saved, and what they cost."""
    key, title = "memorytrades", "Memory for time"
    question = "What do recomputation and offloading save, and what do they cost?"
    rows = analysis.memory_use.trades
    if not rows:
        return Panel(key, title, question, empty=NO_TRADES)
    columns = (Column("rank", "id"), Column("by"), Column("saved per step", "bytes"), Column("costs per step", "ms"))
    body = tuple((t.rank, TRADES.get(t.kind, t.kind), t.saved_bytes_per_step, t.cost_ns_per_step) for t in rows)
    most = max(rows, key=lambda t: t.saved_bytes_per_step)
    reading = (
        f"{TRADES.get(most.kind, most.kind).capitalize()} saves rank {most.rank} {size(most.saved_bytes_per_step)} and "
        f"costs it {duration(most.cost_ns_per_step)} per step."
    )
    caption = "Saved: allocated again by repeated work and not freed by it, or copied out and back. Cost: exposed time."
    return Panel(key, title, question, reading, (Table("memorytrades", columns, body, caption),))


def driver_panel(analysis: Analysis) -> Panel:
    """Calls of the driver's allocator inside the steps."""
    key, title = "drivercalls", "Driver allocations"
    question = "Does the allocator go to the driver inside the step?"
    rows = analysis.memory_use.driver
    if not rows:
        return Panel(key, title, question, empty=NO_DRIVER_CALLS)
    columns = (
        Column("rank", "id"),
        Column("call"),
        Column("calls per step", "count"),
        Column("on the host per step", "ms"),
        Column("retries per step", "count"),
    )
    body = tuple((d.rank, d.call, d.calls_per_step, d.ns_per_step, d.retries_per_step) for d in rows)
    worst = max(rows, key=lambda d: d.ns_per_step)
    reading = (
        f"Rank {worst.rank} spends {duration(worst.ns_per_step)} per step in {worst.call}, "
        f"{plural(round(worst.calls_per_step), 'call')}; {count(worst.retries_per_step)} requests per step are retries "
        "after memory was given back."
    )
    return Panel(key, title, question, reading, (Table("drivercalls", columns, body),))


def step_peaks_panel(analysis: Analysis) -> Panel:
    """Peaks of all steps, between the profiled ones too."""
    key, title, question = "steppeaks", "Peaks of all steps", "Was memory fuller outside the profiled steps?"
    rows = analysis.memory_use.steps
    if not rows:
        return Panel(key, title, question, empty=NO_PEAKS)
    columns = (
        Column("step", "id"),
        Column("profiled"),
        Column("fullest rank", "id"),
        Column("allocated peak", "bytes"),
        Column("mean over ranks", "bytes"),
        Column("reserved peak", "bytes"),
    )
    body: tuple[tuple[Cell, ...], ...] = tuple(
        (s.step, "yes" if s.profiled else "", s.rank, s.allocated_peak_bytes, s.mean_allocated_peak_bytes,
         s.reserved_peak_bytes)
        for s in rows
    )  # fmt: skip
    top = max(rows, key=lambda s: s.allocated_peak_bytes)
    reading = f"Memory is fullest in step {top.step}, {size(top.allocated_peak_bytes)} on rank {top.rank}"
    seen = [s.allocated_peak_bytes for s in rows if s.profiled]
    if seen and not top.profiled:
        reading += f"; the profiled steps reach {size(max(seen))}"
    return Panel(key, title, question, reading + ".", (Table("steppeaks", columns, body),))


def snapshots_panel(analysis: Analysis) -> Panel:
    """Allocator snapshots: what is held and by what, fragmentation, calls of the driver."""
    key, title = "snapshots", "Allocator snapshots"
    question = "What holds the reserved memory, and how much of it is fragmented?"
    rows = analysis.memory_use.snapshots
    if not rows:
        return Panel(key, title, question, empty=NO_SNAPSHOTS)
    columns = (
        Column("rank", "id"),
        Column("file"),
        Column("reserved", "bytes"),
        Column("allocated", "bytes"),
        Column("peak of its history", "bytes"),
        Column("free between blocks", "bytes"),
        Column("free segments", "bytes"),
        Column("awaiting other streams", "bytes"),
        Column("driver allocations", "count"),
        Column("driver frees", "count"),
        Column("retries", "count"),
        Column("out of memory", "count"),
    )
    body: tuple[tuple[Cell, ...], ...] = tuple(
        (s.rank, s.file, s.reserved_bytes, s.allocated_bytes, s.peak_bytes, s.free_split_bytes, s.free_whole_bytes,
         s.pending_bytes, s.num_driver_allocations, s.num_driver_frees, s.num_retries, s.num_out_of_memory)
        for s in rows
    )  # fmt: skip
    tables = (Table("snapshots", columns, body), _owners(rows))
    return Panel(key, title, question, _snapshot_reading(rows), tables)


def _owners(rows: tuple[MemorySnapshot, ...]) -> Table:
    """Category and place by rank: of the peak where there is a history, else of the moment of the dump."""
    columns = (Column("rank", "id"), Column("by"), Column("what"), Column("bytes", "bytes"))
    body = [
        (row.rank, by, what, num_bytes)
        for row in rows
        for by, held in (
            ("category", row.peak_by_category or row.allocated_by_category),
            ("place", row.peak_by_place),
        )
        for what, num_bytes in held.items()
    ]
    caption = "Live at the peak of the recorded history, without one at the dump; places are the model's lines."
    return Table("owners", columns, tuple(body), caption)


def _snapshot_reading(rows: tuple[MemorySnapshot, ...]) -> str:
    worst = max(rows, key=lambda row: row.free_split_bytes)
    share = worst.free_split_bytes / worst.reserved_bytes if worst.reserved_bytes else 0.0
    text = (
        f"Rank {worst.rank} has most fragmentation: {size(worst.free_split_bytes)} of {size(worst.reserved_bytes)} "
        f"reserved ({percent(share)}) lie free between blocks in use"
    )
    retries = sum(row.num_retries for row in rows)
    if retries:
        text += f". The driver refused {plural(retries, 'request')} until cached memory was given back"
    return text + "."
