"""A hand-built :class:`Analysis`: a skewed expert-parallel run whose numbers follow from one small model.

Expert time is proportional to the tokens a rank receives, the combine all-to-all starts when the slowest rank is ready,
and every rank's parts sum to its window. Names can be hostile (markup, quotes, unicode), as names in traces can be.
"""

from __future__ import annotations

from dataclasses import replace

from moescope.findings.model import Finding
from moescope.views.library import LibraryCollective
from moescope.views.model import (
    Analysis,
    Cause,
    Clock,
    Collective,
    CollectiveRank,
    Load,
    LoadInterval,
    LoadLayer,
    Missing,
    RankMemory,
    RankStep,
    Source,
    Step,
    TelemetryStep,
    Unions,
    Wait,
    WaitEdge,
)
from moescope.views.model.gemm import (
    Gemm,
    GemmBucket,
    GemmCost,
    GemmCurve,
    GemmExpert,
    GemmLayer,
    GemmRank,
    GemmReference,
)
from moescope.views.model.host import Host, IdleCause, Launches
from moescope.views.model.memory import DriverCalls, MemorySnapshot, MemoryTrade, MemoryUse, StepPeak, TokenMemory
from moescope.views.model.router import HostTraffic, RouterLayer

HOSTILE = "<script>alert(1)</script>"
HOSTILE_QUOTES = "\"'><img src=x onerror=alert(2)> =cmd|'/C calc'!A0 — ☃ ünïcode"
T0_NS = 1_760_000_000_000_000_000
NS_PER_TOKEN = 2_000
EXPERTS_PER_RANK = 4
GIB = 1 << 30


def skewed_tokens(num_ranks: int, num_layers: int, hot_rank: int = 2) -> list[list[float]]:
    """Mean tokens per layer and expert; the experts of ``hot_rank`` get more, most of all in the last layer."""
    layers = []
    for layer in range(num_layers):
        tokens = []
        for expert in range(num_ranks * EXPERTS_PER_RANK):
            wobble = (expert * 37 + layer * 11) % 17
            hot = 2.0 + 0.5 * layer if expert // EXPERTS_PER_RANK == hot_rank else 1.0
            tokens.append(float(round((220 + 4 * wobble) * hot)))
        layers.append(tokens)
    return layers


def rank_tokens(tokens: list[float], num_ranks: int) -> list[float]:
    """Sum expert tokens by the rank that holds the experts."""
    return [sum(tokens[r * EXPERTS_PER_RANK : (r + 1) * EXPERTS_PER_RANK]) for r in range(num_ranks)]


def max_violation(values: list[float]) -> float:
    """(max - mean) / mean."""
    mean = sum(values) / len(values)
    return (max(values) - mean) / mean


def _host(rank: int, num_ranks: int, hostile: bool) -> str:
    second = rank >= (num_ranks + 1) // 2
    if hostile:
        return HOSTILE if second else "node-ä"
    return "node-b" if second else "node-a"


def _waits(loads: list[list[float]], num_ranks: int) -> list[int]:
    """Arrival wait per rank and step: in every layer the ranks wait for the one with the most tokens."""
    waits = [0] * num_ranks
    for tokens in loads:
        times = [int(t) * NS_PER_TOKEN for t in rank_tokens(tokens, num_ranks)]
        for rank, time_ns in enumerate(times):
            waits[rank] += max(times) - time_ns
    return waits


def _wait_rows(waits: list[int], num_steps: int, num_layers: int, hot: int) -> tuple[Wait, ...]:
    return tuple(
        Wait(rank, 10 + step, "all_to_all", wait, wait * 4 // 5, 6_200_000 + 150_000 * step,
             num_layers * (rank == hot), 1_400)
        for rank, wait in enumerate(waits)
        for step in range(num_steps)
    )  # fmt: skip


def _parts(rank: int, wait_ns: int, expert_ns: int, step: int) -> dict[str, int]:
    removable = wait_ns * 4 // 5
    return {
        "compute.attention": 9_400_000 + 40_000 * rank,
        "compute.expert_gemm": expert_ns,
        "compute.router": 1_100_000,
        "compute.permute": 2_050_000,
        "compute.other_gemm": 3_900_000,
        "compute.elementwise": 2_700_000,
        "compute.optimizer": 1_900_000,
        "compute.recompute": 0,
        "compute.other": 310_000,
        "comm.all_to_all.wait_removable": removable,
        "comm.all_to_all.wait_overlapped": wait_ns - removable,
        "comm.all_to_all.transfer": 6_200_000 + 150_000 * step,
        "comm.reduction.wait_removable": 420_000,
        "comm.reduction.wait_overlapped": 80_000,
        "comm.reduction.transfer": 2_800_000,
        "comm.other.wait_removable": 0,
        "comm.other.wait_overlapped": 0,
        "comm.other.transfer": 0,
        "memory.copy": 640_000,
        "memory.allocator": 0,
        "idle.host_launch": 2_300_000,
        "idle.sync": 1_450_000,
        "idle.dependency": 210_000,
        "idle.gap": 380_000,
        "idle.outside": 0,
    }


def _rank_steps(loads: list[list[float]], num_ranks: int, num_steps: int, hostile: bool) -> list[RankStep]:
    waits = _waits(loads, num_ranks)
    ranks = []
    for rank in range(num_ranks):
        expert_ns = sum(int(rank_tokens(tokens, num_ranks)[rank]) for tokens in loads) * NS_PER_TOKEN
        for index in range(num_steps):
            parts = _parts(rank, waits[rank], expert_ns, index)
            window = sum(parts.values())
            idle = sum(v for k, v in parts.items() if k.startswith("idle."))
            comm = sum(v for k, v in parts.items() if k.startswith("comm."))
            compute = sum(v for k, v in parts.items() if k.startswith("compute."))
            unions = Unions(window, window - idle, compute, comm + 3_000_000, comm, parts["memory.copy"], idle)
            ranks.append(
                RankStep(
                    rank=rank,
                    host=_host(rank, num_ranks, hostile),
                    device="NVIDIA H100 80GB HBM3",
                    step=10 + index,
                    start_ns=T0_NS + index * 80_000_000,
                    window_ns=window,
                    parts_ns=parts,
                    unions_ns=unions,
                )
            )
    return ranks


def _load(loads: list[list[float]], num_ranks: int, num_steps: int) -> Load:
    layers, intervals = [], []
    for index, tokens in enumerate(loads):
        by_rank = rank_tokens(tokens, num_ranks)
        hottest = by_rank.index(max(by_rank))
        layer = 1 + index
        cost = int((max(by_rank) - sum(by_rank) / num_ranks) * NS_PER_TOKEN)
        layers.append(
            LoadLayer(
                layer=layer,
                expert_tokens=tuple(tokens),
                rank_tokens=tuple(by_rank),
                maxvio_expert=max_violation(tokens),
                maxvio_rank=max_violation(by_rank),
                maxvio_expert_floor=0.16,
                maxvio_rank_floor=0.04,
                num_dead_experts=0,
                dropped_share=0.0,
                entropy=0.97 - 0.01 * index,
                hottest_rank=hottest,
                cost_ns_per_step=cost,
            )
        )
        for step in range(num_steps):
            for microbatch in range(2):
                factor = 1 + 0.1 * microbatch - 0.05 * step
                intervals.append(
                    LoadInterval(
                        step=10 + step,
                        microbatch=microbatch,
                        layer=layer,
                        maxvio_expert=max_violation(tokens) * factor,
                        maxvio_rank=max_violation(by_rank) * factor,
                        hottest_rank=hottest,
                        hottest_expert=tokens.index(max(tokens)),
                    )
                )
    return Load(
        source="telemetry",
        ranks=tuple(range(num_ranks)),
        layers=tuple(layers),
        intervals=tuple(intervals),
        cost_ns_per_step=sum(layer.cost_ns_per_step or 0 for layer in layers),
        cost_basis="expert GEMM time of each rank in the trace",
        hottest_rank=layers[-1].hottest_rank,
        maxvio_rank=max(layer.maxvio_rank for layer in layers),
        maxvio_rank_floor=0.04,
    )


def _memory(num_ranks: int, hot_rank: int) -> tuple[RankMemory, ...]:
    result = []
    for rank in range(num_ranks):
        peak = (46 if rank == hot_rank else 31) * GIB + rank * (GIB // 3)
        series = []
        for point in range(96):
            phase = point % 48
            level = 0.45 + 0.55 * (1 - abs(phase - 24) / 24)
            series.append((T0_NS + point * 1_600_000, int(peak * level)))
        result.append(
            RankMemory(
                rank=rank,
                device="NVIDIA H100 80GB HBM3",
                allocated_peak_bytes=peak,
                reserved_peak_bytes=peak + 3 * GIB,
                capacity_bytes=80 * GIB,
                peak_at_ns=T0_NS + 24 * 1_600_000,
                peak_phase="moescope::L3.mb0.experts",
                live_by_phase_bytes={
                    "before the trace": peak // 2,
                    "experts": peak // 4,
                    "attention": peak // 8,
                    "dispatch": peak - peak // 2 - peak // 4 - peak // 8,
                },
                series=tuple(series),
                source="events",
                reserved_at_peak_bytes=peak + 2 * GIB,
                live_by_layer_bytes={"layer 3": peak // 2, "no annotated layer": peak - peak // 2},
                live_by_operation_bytes={"aten::_grouped_mm": peak},
                reserved_series=tuple((at, size + 2 * GIB) for at, size in series),
            )
        )
    return tuple(result)


def _host_view(num_ranks: int, hostile: bool) -> Host:
    idle = [
        IdleCause(rank, kind, name, detail, 3, "dispatch", 900_000 + 50_000 * rank, 4.0, 300_000, T0_NS + 7_000_000)
        for rank in range(num_ranks)
        for kind, name, detail in (
            ("sync", "aten::item", "Memcpy DtoH (Device -> Pageable), cudaStreamSynchronize"),
            ("host_launch", HOSTILE_QUOTES if hostile else "aten::mm", "Python code before it"),
        )
    ]
    launches = (
        Launches(rank, 812.0, 640.0, 8.1, 2.0, 180.0, 4.0, 5_100.0, 11_000.0, 240_000.0, 1.4 + rank, 31)
        for rank in range(num_ranks)
    )
    return Host(tuple(idle), tuple(launches))


def _memory_use(num_ranks: int, memory: tuple[RankMemory, ...], hostile: bool) -> MemoryUse:
    name = HOSTILE if hostile else "experts"
    tokens = tuple(
        TokenMemory(m.rank, 9000.0, 1.2, 1.1, 2_048.0, 2_000.0, 2_096.0, 96, True, 2 * GIB, 1_057_576.0, 1.03e6, 1.08e6)
        for m in memory
    )
    snapshot = MemorySnapshot(
        rank=0,
        file="rank0_memory.pickle",
        device=0,
        reserved_bytes=40 * GIB,
        allocated_bytes=30 * GIB,
        pending_bytes=GIB,
        free_whole_bytes=4 * GIB,
        free_split_bytes=5 * GIB,
        largest_free_bytes=2 * GIB,
        rounding_bytes=1 << 20,
        num_segments=420,
        allocated_by_category={"parameters": 20 * GIB, name: 10 * GIB},
        peak_bytes=34 * GIB,
        peak_by_category={"parameters": 20 * GIB, name: 14 * GIB},
        peak_by_place={"job/model.py:88 forward": 14 * GIB},
        num_driver_allocations=9,
        num_driver_frees=4,
        num_retries=2,
        num_out_of_memory=0,
        num_actions=60_000,
    )
    return MemoryUse(
        tokens=tokens,
        trades=tuple(MemoryTrade(rank, "recompute", 3 * GIB, 2_400_000) for rank in range(num_ranks)),
        driver=(DriverCalls(0, "cudaMalloc", 4.0, 1_800_000, 1.5), DriverCalls(0, "cudaFree", 2.0, 2_100_000, 1.5)),
        steps=tuple(StepPeak(s, 0, (40 + s) * GIB, 39 * GIB, 50 * GIB, s in (10, 11)) for s in range(8, 14)),
        snapshots=(snapshot,),
    )


def _collectives(loads: list[list[float]], num_ranks: int, num_steps: int) -> tuple[Collective, ...]:
    result = []
    for step in range(num_steps):
        cursor = T0_NS + step * 80_000_000 + 6_000_000
        for index, tokens in enumerate(loads):
            times = [int(t) * NS_PER_TOKEN for t in rank_tokens(tokens, num_ranks)]
            last, transfer = cursor + max(times), 1_500_000
            members = tuple(
                CollectiveRank(
                    rank=rank,
                    start_ns=cursor + time_ns,
                    end_ns=last + transfer,
                    arrival_wait_ns=last - cursor - time_ns,
                    removable_wait_ns=(last - cursor - time_ns) * 4 // 5,
                    transfer_ns=transfer,
                    send_bytes=int(tokens[rank]) * 4096,
                    recv_bytes=int(tokens[-1 - rank]) * 4096,
                )
                for rank, time_ns in enumerate(times)
            )
            sequence = step * len(loads) + index
            result.append(Collective("ep", "all_to_all", sequence, 10 + step, 1 + index, "combine", members))
            cursor = last + transfer + 4_000_000
    return tuple(result)


def _telemetry() -> tuple[TelemetryStep, ...]:
    return tuple(
        TelemetryStep(
            step=step,
            start_ns=T0_NS + (step - 10) * 80_000_000,
            duration_ns=62_000_000 + (step * 7919 % 13) * 400_000 + (9_000_000 if step == 31 else 0),
            tokens=32_768,
            loss=7.2 / (1 + 0.04 * step) + 0.02 * (step * 31 % 7),
            gradient_norm=1.4 / (1 + 0.02 * step) + 0.01 * (step * 17 % 5),
            maxvio_rank=0.5 + 0.012 * step + 0.02 * (step * 13 % 5),
            profiled=step in (10, 11),
        )
        for step in range(48)
    )


def _findings(hot: int, wait_ns: int, window_ns: int) -> tuple[Finding, ...]:
    evidence = {"page": "load", "rank": hot, "layer": 3, "formula": "sum over layers of (max - mean) expert time"}
    start, end = T0_NS + 6_000_000, T0_NS + 26_000_000
    timeline = {"page": "timeline", "rank": hot, "step": 10, "start_ns": start, "end_ns": end}
    return (
        Finding(
            "load-imbalance", "critical", hot, 3, wait_ns, wait_ns / window_ns,
            f"Rank {hot} holds the hot experts: 1.99 times the mean tokens in layer 3, and all others wait for it.",
            "Raise the balancing loss or the router bias of these experts, or place two of them on another rank.",
            "high", "measured", evidence,
        ),
        Finding(
            "exposed-communication", "warning", None, None, 6_275_000, 6_275_000 / window_ns,
            "All-to-all transfers are not hidden behind compute.",
            "Overlap the dispatch with the shared expert, or raise the microbatch size.",
            "medium", "measured", timeline,
        ),
        Finding(
            "memory-peak", "info", hot, None, 0, 0.0,
            f"Rank {hot} peaks at 46.7 GiB, 15 GiB above the mean of the others.",
            "Balancing the experts lowers this peak as well.",
            "high", "measured", {"page": "memory", "rank": hot},
        ),
    )  # fmt: skip


def _clocks(num_ranks: int, hostile: bool) -> tuple[Clock, ...]:
    half = (num_ranks + 1) // 2
    first, second = _host(0, num_ranks, hostile), _host(num_ranks - 1, num_ranks, hostile)
    return (
        Clock(first, tuple(range(half)), 0, 0.0, 0, 0, "reference", 0),
        Clock(second, tuple(range(half, num_ranks)), 1_500_312, 0.4, 1_498_900, 1_501_700, "first-leaver, Huber", 12),
    )


def example(num_ranks: int = 4, num_steps: int = 2, num_layers: int = 3, *, hostile: bool = True) -> Analysis:
    """A skewed run: rank 2 (the last where there are fewer ranks) holds the hot experts."""
    hot = min(2, num_ranks - 1)
    loads = skewed_tokens(num_ranks, num_layers, hot)
    waits = _waits(loads, num_ranks)
    ranks = _rank_steps(loads, num_ranks, num_steps, hostile)
    window = max(r.window_ns for r in ranks)
    host = HOSTILE_QUOTES if hostile else "skewed example"
    return Analysis(
        name=host,
        path="/home/alice/<runs>/skewed" if hostile else "/home/alice/runs/skewed",
        basis="simulated",
        controls=("router-bias: +2.0 on the experts of rank 2",),
        world_size=num_ranks,
        sources=tuple(
            Source(
                rank=rank,
                window=0,
                file=f"traces/{HOSTILE if hostile and rank == 0 else ''}rank{rank}.json.gz",
                host=_host(rank, num_ranks, hostile),
                device="NVIDIA H100 80GB HBM3",
                start_ns=T0_NS,
                end_ns=T0_NS + 160_000_000,
                num_events=412_345 + rank,
                num_device_events=38_121 + rank,
                problems=("the last 2 of 412,347 events are cut off; the rest was read",) if rank == 1 else (),
            )
            for rank in range(num_ranks)
        ),
        steps=tuple(Step(10 + s, window, num_ranks, T0_NS + s * 80_000_000) for s in range(num_steps)),
        ranks=tuple(ranks),
        clock=_clocks(num_ranks, hostile),
        waits=_wait_rows(waits, num_steps, num_layers, hot),
        wait_edges=tuple(WaitEdge(r, hot, waits[r]) for r in range(num_ranks) if r != hot),
        causes=(
            Cause("expert_load", hot, 3, max(waits) * 2 // 3, max(waits) * 2 / 3 / window, 1_400, sum(waits) * 2 // 3),
            Cause("expert_load", hot, 2, max(waits) // 3, max(waits) / 3 / window, 1_400, sum(waits) // 3),
        ),
        findings=_findings(hot, max(waits), window),
        missing=(
            Missing("baseline", "How far the GEMMs are from this device's best.", "moescope baseline -o base.json"),
        ),
        collectives=_collectives(loads, num_ranks, num_steps),
        load=_load(loads, num_ranks, num_steps),
        memory=_memory(num_ranks, hot),
        telemetry=_telemetry(),
        provenance={
            "schema": "moescope.run/1",
            "basis": "simulated",
            "name": host,
            "command": ["moescope", "simulate", "--out", "/home/alice/runs/skewed"],
            "git_commit": "da72c60",
            "versions": {"torch": "2.13.0", "moescope": "0.1.0"},
            "hosts": [{"host": _host(0, num_ranks, hostile), "ranks": [0, 1]}],
            "model": {"num_layers": num_layers + 1, "num_experts": num_ranks * EXPERTS_PER_RANK, "top_k": 2},
            "seeds": {"data": 1, "init": 2},
        },
        gemm=gemm_example(num_layers),
        host=_host_view(num_ranks, hostile),
        memory_use=_memory_use(num_ranks, _memory(num_ranks, hot), hostile),
        routers=tuple(
            RouterLayer(layer, 0.02 * (layer + 1), 0.9, 0.004 / (layer + 1), 0.01 * layer)
            for layer in range(num_layers)
        ),
        traffic=_traffic(num_ranks, hostile),
        library=(
            LibraryCollective("<b>EP</b>" if hostile else "EP", "all_reduce", num_ranks, num_ranks, 1, 1 << 20, 40,
                              90_000, 130_000, 11.65, 20.4, "kernel_gpu"),
        ),
    )  # fmt: skip


def _traffic(num_ranks: int, hostile: bool) -> tuple[HostTraffic, ...]:
    """Three MiB from host to host for every MiB that stays."""
    hosts = sorted({_host(rank, num_ranks, hostile) for rank in range(num_ranks)})
    return tuple(HostTraffic(a, b, (1 if a == b else 3) << 20) for a in hosts for b in hosts)


def bare() -> Analysis:
    """The least an analysis can hold: one CPU rank's window, nothing else recorded."""
    full = example(1, 1, 1, hostile=False)
    return replace(
        full,
        name="bare",
        basis="unknown",
        controls=(),
        clock=(),
        waits=(),
        wait_edges=(),
        causes=(),
        findings=(),
        collectives=(),
        load=None,
        memory=(),
        telemetry=(),
        provenance={},
        gemm=None,
        host=Host(),
        memory_use=MemoryUse(),
        routers=(),
        traffic=(),
        library=(),
        missing=(Missing("expert counts", "Which expert is hot.", "Attach the hooks: with observe(model, out=...)."),),
    )


def gemm_example(num_layers: int = 3) -> Gemm:
    """Matrix products of one weight [1024, 4096] in 4 groups: 20 µs per call and 10 ns per row, at 800 TFLOP/s.

    4 groups of 2 * 4096 * 1024 FLOPs a row are 33,554,432; 1,000 rows take 30 µs, so they run at 1,118.48 TFLOP/s.
    """
    parts = {"memory": 40_000, "tile": 60_000, "wave": 300_000, "launch": 20_000, "residual": -50_000}
    cost = GemmCost(12.0, 1_370_000, 8.0e11, 584.0, sum(parts.values()), parts)
    curve = GemmCurve("grouped", "bfloat16", 4, 4096, 1024, 20_000.0, 10.0, 150.0,
                      tuple((rows, 20_000.0 + 10.0 * rows, 6) for rows in (100.0, 1_000.0, 4_000.0)))  # fmt: skip
    still = GemmCurve("gemm", "float32", 1, 512, 1024, None, None, None, ((64.0, 8_000.0, 12),))
    return Gemm(
        references=(
            GemmReference("NVIDIA H100 80GB HBM3", "bfloat16", 2_000.0, "baseline", 0, 989.5, 3_350.0),
            GemmReference("NVIDIA H100 80GB HBM3", "float32", 60.0, "device peak", 0, 66.9, 3_350.0),
        ),
        experts=cost,
        other=replace(cost, loss_ns_per_step=0, parts_ns_per_step=dict.fromkeys(parts, 0)),
        layers=tuple(GemmLayer(1 + layer, cost) for layer in range(num_layers)),
        buckets=(GemmBucket(64, 128, cost), GemmBucket(2048, None, cost)),
        by_rank=(GemmRank(0, 10, 800_000_000_000, 0, 1_370_000, 370_000, 1_370_000, 370_000, 0.31),),
        curves=(still, curve),
        rows_per_expert_median=1_000.0,
        utilisation=0.31,
        recompute_ns_per_step=0,
        covered_share=0.9,
        grouped_saving_ns_per_step=120_000,
        by_expert=(
            GemmExpert(0, 0, 24.0, 41.5, 900_000, 700_000, True),
            GemmExpert(1, 3, 24.0, 9.0, 800_000, 780_000, True),
        ),
    )
