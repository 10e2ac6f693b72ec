"""Damaged traces: no exception, nothing lost without a word, and little lost around the damage.

``MOESCOPE_FUZZ=5000 pytest tests/trace/test_fuzz.py`` tries that many inputs of each trace instead of a hundred.
"""

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from trace_fuzz import damaged
from trace_zoo import event, frame, process, trace

from moescope.errors import InputUnreadableError
from moescope.trace import RankTrace, open_directory
from moescope.trace.scan import Scan, scan

SHARED = Path(__file__).parents[3] / "shared" / "traces"
NUM_INPUTS = int(os.environ.get("MOESCOPE_FUZZ", "100"))
SEED = 20261129
LOCAL = 20
"""A single place of damage may cost no more events than this (twenty flipped bits are up to twenty places)."""


def _made() -> bytes:
    """A trace of 240 events with what real ones have: launches, operators, communication, memory, names."""
    events = [process(1, "python"), process(0, "GPU 0", "process_labels")]
    for i in range(60):
        args = {"External id": i, "Input Dims": [[i, 4], []], "Input type": ["float", "Scalar"]}
        ids = {"correlation": i, "device": 0, "stream": 7}
        collective = {"Collective name": "all_to_allv", "In split size": "[1, 2]", "Process Group Name": "20"}
        memory = {"Bytes": 8, "Addr": i, "Total Allocated": 8 * i, "Device Type": 0, "Device Id": -1}
        events += [
            event("cpu_op", f"{1700000000000 + 10 * i}.125", "3.5", name="aten::mm", args=args),
            event(
                "cuda_runtime", f"{1700000000001 + 10 * i}.25", "1", name="cudaLaunchKernel", args={"correlation": i}
            ),
            event("kernel", f"{1700000000004 + 10 * i}.001", "5", name="ncclDevKernel", args=ids | collective),
            json.dumps({"ph": "i", "name": "[memory]", "tid": 1, "ts": 5 + i, "args": memory}),
        ]
    return trace(*events, baseTimeNanoseconds=10**15).encode()


def _source(name: str) -> bytes:
    if name == "made":
        return _made()
    path = SHARED / name
    if not path.exists():
        pytest.skip("the folder of recorded traces is absent")
    return gzip.decompress(path.read_bytes())


def _strictly(data: bytes) -> list[tuple[int, int, int, str]] | None:
    """(index, start, duration, name) of complete events by a strict reading of valid JSON, None of what is invalid."""
    try:
        document: Any = json.loads(data, parse_float=str, parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ZeroDivisionError):
        return None
    events = document.get("traceEvents", []) if isinstance(document, dict) else document
    rows = []
    for index, one in enumerate(events):
        if one["ph"] == "X":
            rows.append((index, _ns(one["ts"]), _ns(one["dur"]), str(one.get("name"))))
    return rows


def _ns(value: object) -> int:
    return round(Decimal(str(value)) * 1000)


def _rows(found: Scan) -> list[tuple[int, int, int, str]]:
    return frame(found.events).sort("index").select("index", "ts_ns", "dur_ns", pl.col("name").cast(pl.String)).rows()


def _same(one: Scan, other: Scan) -> bool:
    """Whether the tables hold the same, but for indices, which what is lost may shift."""
    frames = [(frame(found.events), found.comm, found.memory) for found in (one, other)]
    tables = zip(*frames, strict=True)
    return all(a.drop("index", strict=False).equals(b.drop("index", strict=False)) for a, b in tables)


def _num_lost(clean: Scan, found: Scan) -> int:
    names = ["ts_ns", "dur_ns", "name", "recorded", "pid", "tid", "correlation"]
    distinct = frame(clean.events).select(names).unique()
    return distinct.join(frame(found.events), on=names, how="anti", nulls_equal=True).height


@pytest.mark.parametrize("name", ["made", "dlrm8/rank0_trace.json.gz", "malformed/minified/rank0_trace.json.gz"])
def test_damaged_content(name: str, tmp_path: Path) -> None:
    data, path = _source(name), tmp_path / "t.json"
    path.write_bytes(data)
    clean = scan(path)
    assert clean is not None
    assert not clean.faults.counts
    for seed in range(SEED, SEED + NUM_INPUTS):
        how, bad = damaged(data, seed)
        path.write_bytes(bad)
        found = scan(path)
        if found is None:
            assert how == "cut", (seed, how)
        elif not found.faults.counts:
            rows = _strictly(bad)
            assert _same(clean, found) if rows is None else rows == _rows(found), (seed, how)
        elif how in ("flip", "insert", "token", "value"):
            assert _num_lost(clean, found) <= LOCAL, (seed, how)


def test_damaged_gzip(tmp_path: Path) -> None:
    data, path = _made(), tmp_path / "t.json.gz"
    path.write_bytes(data)
    clean = scan(path)
    assert clean is not None
    for seed in range(SEED, SEED + NUM_INPUTS):
        how, bad = damaged(gzip.compress(data, 6), seed) if seed % 2 else ("cut", gzip.compress(data, 6)[: seed % 1500])
        path.write_bytes(bad)
        found = scan(path)
        assert found is None or found.faults.counts or _same(clean, found), (seed, how)


def _small() -> bytes:
    """A trace that is mostly metadata, before and after the events."""
    groups = [{"pg_name": "20", "pg_desc": "ep", "ranks": [0, 1], "pg_size": 2}, {"pg_name": "7", "ranks": "[0, 1]"}]
    info = {"distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": groups}}
    events = [process(0, "python rank 1"), process(0, "GPU 0", "process_labels"), event(), event("cpu_op", "4.5")]
    text = trace(*events, rank=None, baseTimeNanoseconds=10**15, deviceProperties=[{"id": 0, "name": "B200"}], **info)
    return (text[:-1] + f', "host_name": "n7", "again": {json.dumps(info)}}}').encode()


def test_damaged_folder(tmp_path: Path) -> None:
    """Files that are mostly metadata: another identity than the clean one's is never taken without a word."""
    clean_file = tmp_path / "clean" / "rank1.json"
    clean_file.parent.mkdir()
    clean_file.write_bytes(_small())
    (clean,) = open_directory(clean_file.parent, workers=1).ranks
    path = tmp_path / "t" / "rank1.json"
    path.parent.mkdir()
    for seed in range(SEED, SEED + NUM_INPUTS):
        how, bad = damaged(_small(), seed)
        path.write_bytes(bad)
        try:
            found = open_directory(path.parent, workers=1)
        except InputUnreadableError:  # refused, with the reason
            continue
        (one,) = found.ranks
        assert _identity(one) == _identity(clean) or one.problems or _is_json(bad), (seed, how)


def _identity(one: RankTrace) -> tuple[object, ...]:
    return one.rank, one.world_size, one.host, one.device, one.groups


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
