"""JSON of NCCL's inspector plugin: one object per line, for each completed collective of each communicator.

Versions 4.0 to 4.2 repeat ``header`` (communicator and rank in it) and ``metadata`` (host, process) on every line;
since 4.3 a ``dump_stats`` line carries both for the lines that follow it. The plugin's own figures are kept: its time
is that of the kernel on one rank, so it holds the wait for ranks that came later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from moescope.intake import lines

LIBRARY_COLLECTIVE: Mapping[str, pl.DataType] = {
    "host": pl.String(),
    "pid": pl.Int64(),
    "communicator": pl.String(),
    "name": pl.String(),
    "member": pl.Int32(),
    "group_size": pl.Int32(),
    "num_hosts": pl.Int32(),
    "kind": pl.String(),
    "peer": pl.Int32(),
    "seq": pl.Int64(),
    "bytes": pl.Int64(),
    "duration_ns": pl.Int64(),
    "timing": pl.String(),
    "algbw_gb_per_s": pl.Float64(),
    "busbw_gb_per_s": pl.Float64(),
    "algorithm": pl.String(),
    "protocol": pl.String(),
    "start_ns": pl.Int64(),
    "dumped_ns": pl.Int64(),
}
"""One row per member and operation. ``communicator``: its hash, the same on all members; ``name``: what the framework
called it, null before version 4.1. ``member``: rank within the communicator. ``kind``: as elsewhere, also ``send`` and
``recv``, whose ``peer`` is known. ``timing``: ``kernel_gpu``, or the less exact ``kernel_cpu`` and ``collective_cpu``.
``start_ns``: of the first kernel on the host's clock, only in verbose recordings; ``dumped_ns``: when it was written.
"""

_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Send": "send",
    "Recv": "recv",
    "SendRecv": "send_recv",
    "AlltoAll": "all_to_all",
    "AllToAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}


_NO_RECORD = (
    msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What a line that is no record leads to."""


def read_inspector(paths: Sequence[Path], root: Path, problems: list[str]) -> pl.DataFrame:
    """All operations of all files, sorted by communicator, kind, number and member; losses go into ``problems``."""
    rows = [row for path in paths for row in _read(path, path.relative_to(root).as_posix(), problems)]
    frame = pl.DataFrame(rows, schema=dict(LIBRARY_COLLECTIVE), orient="row")
    return frame.sort("communicator", "kind", "seq", "member", maintain_order=True)


def _read(path: Path, name: str, problems: list[str]) -> Iterator[dict[str, Any]]:
    context: dict[str, Any] = {}
    bad, dropped = 0, {}
    try:
        for line in lines(path):
            try:
                record = msgspec.json.decode(line)
                if "dump_stats" in record:
                    context = {key: record[key] for key in ("header", "metadata")}
                    dropped[record["header"]["id"]] = _num_dropped(record["dump_stats"])
                elif "coll_perf" in record or "p2p_perf" in record:
                    yield _row({**context, **record})
            except (
                msgspec.DecodeError,
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                OverflowError,
                RecursionError,
            ):
                bad += 1
    except OSError as error:
        problems.append(f"{name} cannot be read to its end: {error.strerror or error}")
    if bad:
        problems.append(f"{name}: {bad} lines are cut or no inspector records; their collectives are missing")
    if lost := sum(dropped.values()):
        problems.append(f"{name}: the plugin overwrote {lost} records before writing them: raise its ring size")


def _num_dropped(stats: Mapping[str, Any]) -> int:
    return int(stats.get("coll_dropped_total", 0)) + int(stats.get("p2p_dropped_total", 0))


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    header, metadata = record["header"], record["metadata"]
    prefix = "coll" if "coll_perf" in record else "p2p"
    perf = record[f"{prefix}_perf"]
    kind = str(perf[prefix])
    return {
        "host": metadata.get("hostname"),
        "pid": metadata.get("pid"),
        "communicator": str(header["id"]),
        "name": None if header.get("comm_name") in (None, "", "unknown") else str(header["comm_name"]),
        "member": int(header["rank"]),
        "group_size": int(header["n_ranks"]),
        "num_hosts": header.get("nnodes"),
        "kind": _KINDS.get(kind, kind),
        "peer": perf.get("p2p_peer"),
        "seq": int(perf[f"{prefix}_sn"]),
        "bytes": int(perf[f"{prefix}_msg_size_bytes"]),
        "duration_ns": 1000 * int(perf[f"{prefix}_exec_time_us"]),
        "timing": perf.get(f"{prefix}_timing_source"),
        "algbw_gb_per_s": _number(perf.get(f"{prefix}_algobw_gbs")),
        "busbw_gb_per_s": _number(perf.get(f"{prefix}_busbw_gbs")),
        "algorithm": perf.get("coll_algo"),
        "protocol": perf.get("coll_proto"),
        "start_ns": _first_kernel_ns(perf),
        "dumped_ns": 1000 * int(metadata["dump_timestamp_us"]),
    }


def _number(value: object) -> float | None:
    """A figure; the plugin writes the text ``nan`` where it has none."""
    return float(value) if isinstance(value, int | float) else None


def _first_kernel_ns(perf: Mapping[str, Any]) -> int | None:
    kernels = perf.get("event_trace_ts", {}).get("kernel_events", [])
    starts = [int(kernel["kernel_start_ts"]) for kernel in kernels if kernel.get("kernel_start_ts")]
    return 1000 * min(starts) if starts else None
