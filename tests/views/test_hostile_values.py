"""Numbers, names and shapes that nothing can have: whatever events claim, the analysis ends and can be written."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from trace_zoo import event, trace

from moescope.errors import InputUnreadableError
from moescope.views.build import analyze
from moescope.views.json import to_json

ODD = (0, -1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64 - 1, 4 * 10**15, "x", None, 1e300, 3)
FIELDS = ("correlation", "External id", "device", "stream", "bytes", "In msg nelems", "Group size", "Seq", "Src Rank")
NAMES = (
    "ncclDevKernel_SendRecv", "k", "ProfilerStep#1", "ProfilerStep#99999999999999999999", "aten::mm", "gemm_MT0x0x0",
    "nvjet_tst_0x0_", "moescope::L99999999999999999999.mb0.dispatch", "moescope::L0.mb0.experts", "cudaMalloc",
    "cudaLaunchKernel", "c10d::alltoall_base_", "c10d::broadcast_", "gloo:all_to_all", None,
)  # fmt: skip
SHAPES = (
    {"Input Dims": [[0, 64], [64, 64]], "Input type": ["float", "float"]},
    {"Input Dims": [[2**40, 2**40], [2**40, 64]], "Input type": ["float", "float"]},
    {"Input Dims": [[-1, 64], [64, 64]], "Input type": ["float", "float"]},
    {"Input Dims": {"a": 1}, "Input type": {"0": 1}, "Concrete Inputs": 5},
    {"Input Dims": [["a"], [None]], "Input type": [[1]], "Concrete Inputs": ["[1, 99999999999999999999]", "[2]", "²"]},
)  # fmt: skip
GROUPS = ([0, 1], [0, 10**6], "[0, 1]", [2**62], None)


def odd_event(draw: random.Random) -> str:
    args = {name: draw.choice(ODD) if draw.random() < 0.5 else draw.randrange(6) for name in FIELDS}
    args = {name: value for name, value in args.items() if draw.random() < 0.4}
    if draw.random() < 0.4:
        splits = [draw.choice(ODD), 2]
        args |= {"Collective name": "all_to_allv", "In split size": splits, "Process Group Ranks": draw.choice(GROUPS)}
    if draw.random() < 0.4:
        args |= draw.choice(SHAPES)
    category = draw.choice(["kernel", "cpu_op", "cuda_runtime", "gpu_memcpy", "user_annotation"])
    start = draw.choice([4 * 10**15, -4 * 10**15]) if draw.random() < 0.1 else draw.randrange(100)
    duration = draw.choice([0, 3, 9, 10**13])
    return event(category, str(start), str(duration), name=draw.choice(NAMES), args=args, tid=draw.choice([7, 2**63]))


@pytest.mark.parametrize("seed", range(12))
def test_an_analysis_of_impossible_values_ends(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for rank in range(2):
        memory = {"Bytes": draw.choice(ODD), "Addr": draw.choice(ODD), "Device Type": 1, "Device Id": 0}
        freed = json.dumps({"ph": "i", "name": "[memory]", "ts": draw.choice(ODD), "tid": 7, "args": memory})
        device = {"id": 0, "name": "NVIDIA H100", "numSms": draw.choice(ODD), "totalGlobalMem": draw.choice(ODD)}
        base = draw.choice((0, 4 * 10**18, "x"))
        events = [odd_event(draw) for _ in range(draw.randrange(40))]
        text = trace(*events, freed, rank=rank, deviceProperties=[device], baseTimeNanoseconds=base)
        (tmp_path / f"rank{rank}.json").write_text(text)
    with suppress(InputUnreadableError):  # two processes with one step: merged ranks that cannot be told apart
        json.dumps(to_json(analyze(tmp_path, workers=1, cache=False)), allow_nan=False).encode()
