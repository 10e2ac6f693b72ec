"""A rank's device events as labelled intervals: kernels and copies, or on a host-only trace its operations.

On a host-only trace the threads that run operations stand for the device: operations are compute, the backend's
communication ranges are communication, and what lies between is idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.context import contexts, enclosing
from moescope.align.ranges import IntArray
from moescope.attribution.gemm.recompute import recomputed
from moescope.attribution.labels import COMM_LABEL_OF_PART, TOKEN_BOUND_PHASES, Label, compute_labels, refine

DEVICE_CATEGORIES = ("kernel", "copy", "memset")
ALLOCATOR_CALLS = (
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|FreeHost|MallocAsync|FreeAsync|MemCreate|MemMap|MemUnmap)"
)
HOST_OPERATION = r"^(aten|mkldnn|quantized|torchvision|prims)::"
OPERATIONS_OF_INTEREST = r"_mm$|_grouped_mm|scaled_dot_product|attention|flash|grouped_gemm|fused_moe"


@dataclass(frozen=True, slots=True)
class DeviceIntervals:
    """Labelled half-open intervals of one rank, [n] each, in no particular order.

    ``event``: index of the event in the file; ``layer`` -1 where unknown; ``token_bound``: work that grows with the
    tokens received; ``instance``: row of the rank's collectives for communication, else -1;
    ``launch_ns``: when the host issued it, -1 where not recorded; ``stream``: -1 on a host-only trace.
    """

    start_ns: IntArray
    end_ns: IntArray
    label: IntArray
    event: IntArray
    layer: IntArray
    token_bound: npt.NDArray[np.bool_]
    instance: IntArray
    launch_ns: IntArray
    stream: IntArray
    on_gpu: bool


def device_intervals(events: pl.DataFrame, launch: pl.DataFrame, instances: pl.DataFrame) -> DeviceIntervals:
    """Label everything the device did.

    ``launch``: ``context.launches(events)``; ``instances``: the rank's collectives (``instances.comm_instances``).
    """
    table = pl.concat([events, launch], how="horizontal")
    device = table.filter(pl.col("category").is_in(DEVICE_CATEGORIES))
    if len(device):
        return _of_gpu(device, table, instances)
    return _of_host(table, instances)


def _of_gpu(device: pl.DataFrame, table: pl.DataFrame, instances: pl.DataFrame) -> DeviceIntervals:
    compute = device.filter(pl.col("kind") == "compute")
    other = device.filter(pl.col("kind").is_in(["copy", "wait"]))
    allocator = table.filter(
        (pl.col("category") == "runtime") & pl.col("name").cast(pl.String).str.contains(ALLOCATOR_CALLS)
    )
    moment = compute["launch_ns"].fill_null(-1).to_numpy()
    thread = compute["launch_tid"].fill_null(-1).to_numpy()
    labels, layer, token_bound = _compute_context(compute, table, moment, thread)
    other_label = np.where((other["kind"] == "wait").to_numpy(), Label.COMM_WAIT, Label.COPY)
    return _stack(
        [
            (compute, labels, layer, token_bound),
            (other, other_label, np.full(len(other), -1), np.zeros(len(other), dtype=bool)),
            (
                allocator,
                np.full(len(allocator), Label.ALLOCATOR),
                np.full(len(allocator), -1),
                np.zeros(len(allocator), dtype=bool),
            ),
        ],
        instances,
        on_gpu=True,
    )


def _of_host(table: pl.DataFrame, instances: pl.DataFrame) -> DeviceIntervals:
    operations = table.filter(
        (pl.col("category") == "cpu_op") & pl.col("name").cast(pl.String).str.contains(HOST_OPERATION)
    )
    moment, thread = operations["start_ns"].to_numpy(), operations["tid"].to_numpy()
    labels, layer, token_bound = _compute_context(operations, table, moment, thread)
    return _stack([(operations, labels, layer, token_bound)], instances, on_gpu=False)


def _compute_context(
    compute: pl.DataFrame, table: pl.DataFrame, moment: IntArray, thread: IntArray
) -> tuple[IntArray, IntArray, npt.NDArray[np.bool_]]:
    """(label, layer, token bound) of compute events from their names and from where the host was."""
    name = compute["name"].cast(pl.String)
    own = name.replace_strict(compute_labels(name.unique().to_list()), return_dtype=pl.Int64)
    where = contexts(table, moment, thread)
    operation = _operation_labels(table, moment, thread)
    combined = pl.DataFrame({"own": own, "operation": operation, "phase": where["phase"]})
    distinct = combined.unique()
    distinct = distinct.with_columns(label=pl.Series([int(refine(*row)) for row in distinct.rows()], dtype=pl.Int64))
    label = combined.join(
        distinct, on=["own", "operation", "phase"], how="left", nulls_equal=True, maintain_order="left"
    )["label"]
    token_bound = where["phase"].is_in(list(TOKEN_BOUND_PHASES)).fill_null(False) | label.is_in([Label.EXPERT_GEMM])
    final = np.where(recomputed(table, moment, thread), Label.RECOMPUTE, label.to_numpy())
    return final, where["layer"].fill_null(-1).cast(pl.Int64).to_numpy(), token_bound.to_numpy()


def _operation_labels(table: pl.DataFrame, moment: IntArray, thread: IntArray) -> pl.Series:
    """The class of the innermost attention or grouped-GEMM operation around each launch, null for none; [m]."""
    operations = table.filter(
        (pl.col("category") == "cpu_op") & pl.col("name").cast(pl.String).str.contains(OPERATIONS_OF_INTEREST)
    )
    name = operations["name"].cast(pl.String)
    labels = name.replace_strict(compute_labels(name.unique().to_list()), return_dtype=pl.Int64)
    slot = enclosing(operations, moment, thread)
    return labels.gather(pl.Series(slot).replace(-1, None))


def _stack(
    parts: list[tuple[pl.DataFrame, IntArray, IntArray, npt.NDArray[np.bool_]]],
    instances: pl.DataFrame,
    *,
    on_gpu: bool,
) -> DeviceIntervals:
    """The given events and the rank's collectives as one set of intervals."""
    columns = [
        (
            frame["start_ns"].to_numpy(),
            frame["start_ns"].to_numpy() + frame["dur_ns"].to_numpy(),
            label,
            frame["index"].to_numpy(),
            layer,
            token_bound,
            np.full(len(frame), -1),
            frame["launch_ns"].fill_null(-1).to_numpy(),
            frame["stream"].fill_null(-1).to_numpy(),
        )
        for frame, label, layer, token_bound in parts
    ]
    comm_label = instances["part"].replace_strict(
        {part: int(label) for part, label in COMM_LABEL_OF_PART.items()}, return_dtype=pl.Int64
    )
    columns.append(
        (
            instances["start_ns"].to_numpy(),
            instances["end_ns"].to_numpy(),
            comm_label.to_numpy(),
            instances["event"].to_numpy(),
            instances["layer"].fill_null(-1).to_numpy(),
            np.zeros(len(instances), dtype=bool),
            np.arange(len(instances)),
            instances["launch_ns"].fill_null(-1).to_numpy(),
            instances["stream"].fill_null(-1).to_numpy(),
        )
    )
    stacked = [np.concatenate(column) for column in zip(*columns, strict=True)]
    start, end, label, event, layer, token_bound, instance, launch, stream = stacked
    return DeviceIntervals(
        start.astype(np.int64),
        end.astype(np.int64),
        label.astype(np.int64),
        event.astype(np.int64),
        layer.astype(np.int64),
        token_bound.astype(bool),
        instance.astype(np.int64),
        launch.astype(np.int64),
        stream.astype(np.int64),
        on_gpu,
    )
