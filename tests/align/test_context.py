"""Layer, microbatch and phase from our own ranges and from other trainers' names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_trace import BASE_NS, TinyRank, write

from moescope.align.context import contexts, launches, parse_range
from moescope.trace import open_directory


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("moescope::L3.mb0.dispatch.bwd", (3, 0, "dispatch", True)),
        ("moescope::L12.mb7.experts", (12, 7, "experts", False)),
        ("moescope::mb1.head", (None, 1, "head", False)),
        ("moescope::optimizer", (None, None, "optimizer", False)),
        ("moescope::grad_reduce", (None, None, "grad_reduce", False)),
        ("moescope::L3.mb0.experts.recompute", (3, 0, "experts", False)),
        ("moescope::L0.mb0", (0, 0, None, False)),
        ("moescope::L0.mb0.bwd", (0, 0, None, True)),
        ("Optimizer.step#AdamW.step", (None, None, "optimizer", False)),
        ("token_dispatch", (None, None, "dispatch", False)),
        ("MoE combine", (None, None, "combine", False)),
        ("SelfAttention", (None, None, "attention", False)),
        ("shared_experts", (None, None, "shared", False)),
        ("TEGroupedMLP.grouped_mlp", (None, None, "experts", False)),
        ("router backward", (None, None, "router", True)),
        ("grad_all_reduce", (None, None, "grad_reduce", False)),
        ("ProfilerStep#7", None),
        ("nccl:all_reduce", None),
        ("gloo:all_to_all", None),
        ("my dispatcher", None),
        ("propagate", None),
        ("forward", None),
    ],
)
def test_what_a_range_says(name: str, expected: tuple[int | None, int | None, str | None, bool] | None) -> None:
    assert parse_range(name) == expected


def test_the_innermost_range_of_the_launching_thread_counts(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.annotate("moescope::L1.mb0", 0, 100)
    rank.annotate("moescope::L1.mb0.experts", 20, 40)
    rank.annotate("unrelated", 25, 10)
    rank.annotate("moescope::L9.mb9.router", 0, 100, tid=5)  # another thread
    events = open_directory(write([rank], tmp_path)).ranks[0].events()
    moments = BASE_NS + np.array([10, 30, 70, 200])
    found = contexts(events, moments, np.ones(4, dtype=np.int64))
    assert found["layer"].to_list() == [1, 1, 1, None]
    assert found["phase"].to_list() == [None, "experts", None, None]
    assert found["backward"].to_list() == [False, False, False, None]


def test_a_launch_is_found_by_its_correlation(tmp_path: Path) -> None:
    rank = TinyRank(0, 1)
    rank.kernel("a", 100, 10, launched=40)
    rank.kernel("b", 200, 10)
    rank.call("cudaDeviceSynchronize", 300, 5, correlation=999)
    events = open_directory(write([rank], tmp_path)).ranks[0].events()
    found = events.select("name").hstack(launches(events))
    of = {str(row["name"]): row for row in found.iter_rows(named=True)}
    assert of["a"]["launch_ns"] == BASE_NS + 40
    assert (of["a"]["launch_end_ns"], of["a"]["launch_tid"]) == (BASE_NS + 41, 1)
    assert of["b"]["launch_ns"] is None
    assert of["cudaLaunchKernel"]["launch_ns"] is None  # a host event has no launch
