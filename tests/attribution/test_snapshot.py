"""A memory snapshot taken apart, against values worked out by hand."""

from __future__ import annotations

import pytest
from torch_snapshot import ADAM, EXCHANGE, GRADIENT, LINEAR, WEIGHTS, Stack, TinySnapshot

from moescope.attribution.snapshot import BEFORE_HISTORY, SnapshotUse, num_retries, snapshot_use
from moescope.attribution.snapshot_owners import owner, place
from moescope.trace.snapshots import parse


def used(snapshot: TinySnapshot) -> SnapshotUse:
    found = snapshot_use(parse(snapshot.data(), 0, "rank0.pickle"))
    assert found is not None
    return found


def test_bytes_of_the_segments_add_up() -> None:
    snapshot = TinySnapshot()
    snapshot.segment(
        1000, 1000, [(500, "active_allocated", WEIGHTS), (300, "inactive", ()), (200, "active_awaiting_free", LINEAR)]
    )
    snapshot.segment(5000, 700, [(700, "inactive", ())])
    snapshot.segment(9000, 100, [(100, "active_pending_free", LINEAR)])
    found = used(snapshot)
    assert (found.reserved_bytes, found.allocated_bytes, found.pending_bytes) == (1800, 500, 300)
    assert (found.free_whole_bytes, found.free_split_bytes, found.largest_free_bytes) == (700, 300, 700)
    assert (found.rounding_bytes, found.num_segments) == (8, 3)
    assert found.allocated_by_category == {"parameters": 500}
    assert (found.peak_bytes, found.peak_by_category) == (None, {})


def history() -> TinySnapshot:
    """Weights (500) were there before the history; then an activation (400), a gradient (100), the activation goes,
    Adam's state (200) comes: the peak, 1000, is before the activation goes."""
    snapshot = TinySnapshot()
    snapshot.segment(
        0, 2000, [(500, "active_allocated", WEIGHTS), (400, "inactive", ()), (100, "active_allocated", GRADIENT),
                  (200, "active_allocated", ADAM), (800, "inactive", ())],
    )  # fmt: skip
    snapshot.act("segment_alloc", 0, 2000)
    snapshot.act("alloc", 500, 400, LINEAR)
    snapshot.act("alloc", 900, 100, GRADIENT)
    snapshot.act("free_requested", 500, 400)
    snapshot.act("free_completed", 500, 400)
    snapshot.act("alloc", 1000, 200, ADAM)
    return snapshot


def test_the_peak_of_the_history_and_what_was_live_there() -> None:
    found = used(history())
    assert found.peak_bytes == 1000
    assert found.peak_by_category == {"parameters": 500, "activations": 400, "gradients": 100}
    assert found.peak_by_place["job/model.py:88 forward"] == 400
    assert found.allocated_by_category == {"parameters": 500, "optimizer": 200, "gradients": 100}
    assert sum(found.peak_by_category.values()) == found.peak_bytes


def test_what_was_freed_later_and_allocated_before_counts_as_before() -> None:
    snapshot = history()
    snapshot.act("free_requested", 7777, 50)
    found = used(snapshot)
    assert found.peak_bytes == 1050
    assert found.peak_by_category[BEFORE_HISTORY] == 50


def test_metadata_of_the_program_names_the_category() -> None:
    snapshot = TinySnapshot()
    snapshot.segment(0, 100, [(100, "active_allocated", LINEAR)])
    snapshot.act("alloc", 0, 100, LINEAR, user_metadata="layer 3 experts")
    assert used(snapshot).peak_by_category == {"layer 3 experts": 100}


def test_calls_of_the_driver_are_counted() -> None:
    snapshot = history()
    for action in ("segment_alloc", "segment_free", "segment_free", "segment_alloc", "oom", "segment_map"):
        snapshot.act(action, 1, 1)
    found = used(snapshot)
    assert (found.num_driver_allocations, found.num_driver_frees) == (4, 2)
    assert (found.num_retries, found.num_out_of_memory) == (1, 1)


@pytest.mark.parametrize(
    ("actions", "retries"),
    [
        (["segment_free", "segment_alloc"], 1),
        (["segment_free", "segment_free", "segment_alloc", "alloc"], 1),
        (["segment_free", "alloc", "segment_alloc"], 0),
        (["segment_unmap", "segment_map"], 1),
        (["segment_alloc", "segment_free"], 0),
    ],
)
def test_a_retry_is_a_request_right_after_giving_back(actions: list[str], retries: int) -> None:
    assert num_retries(actions) == retries


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (LINEAR, "activations"), (WEIGHTS, "parameters"), (ADAM, "optimizer"), (GRADIENT, "gradients"),
        (EXCHANGE, "dispatch and combine buffers"), ((), "no stack recorded"), ((("/x.py", 1, "f"),), "other"),
        ((("/m/token_dispatcher.py", 1, "dispatch"), *LINEAR), "dispatch and combine buffers"),
        ((("CUDABlas.cpp", 1, "at::cuda::getCUDABlasLtWorkspace"), *LINEAR), "workspace"),
        ((("Functions.cpp", 1, "torch::autograd::generated::MmBackward0::apply"),), "gradients of activations"),
    ],
)  # fmt: skip
def test_categories_by_stack(stack: Stack, category: str) -> None:
    assert owner(stack) == category


def test_the_place_is_the_models_own_line() -> None:
    assert place(LINEAR) == "job/model.py:88 forward"
    assert place(LINEAR[:1]) == "modules/linear.py:125 forward"
    assert place(GRADIENT) == "accumulate_grad.cpp:0 torch::autograd::AccumulateGrad::apply"


def test_a_snapshot_without_segments_tells_nothing() -> None:
    assert snapshot_use(parse(TinySnapshot().data(), 0, "x")) is None
