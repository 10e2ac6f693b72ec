"""What transfers cost beyond even volumes over equal links, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from moescope.align import SlowLink, TransferModel
from moescope.attribution.transfers import transfer_causes, transfer_losses

MODELS = {"within host": TransferModel("within host", 100.0, 2.0, 0.0, 9, "by hand")}
SCHEMA = {
    "instance": pl.Int64, "rank": pl.Int64, "step": pl.Int64, "stage": pl.Int64, "turn": pl.Int64, "layer": pl.Int32,
    "kind": pl.String, "phase": pl.String, "backward": pl.Boolean, "group": pl.String, "members": pl.List(pl.Int64),
    "tier": pl.String, "complete": pl.Boolean, "start_ns": pl.Int64, "end_ns": pl.Int64, "transfer_ns": pl.Int64,
    "exposed_transfer_ns": pl.Int64, "send_bytes": pl.Int64, "even_links_ns": pl.Float64, "remote_bytes": pl.Float64,
    "bottleneck_bytes": pl.Float64, "mean_bytes": pl.Float64, "bottleneck_rank": pl.Int64,
    "bottleneck_receives": pl.Boolean,
}  # fmt: skip


def exchange(
    instance: int, sizes: dict[int, float], span: int, *, exposed: float = 1.0, receives: bool = True, **rest: Any
) -> list[dict[str, Any]]:
    """An all-to-all of ranks that exchange ``sizes`` bytes with others and arrive together."""
    most = max(sizes, key=lambda rank: sizes[rank])
    shared = {
        "instance": instance, "step": 0, "stage": 0, "turn": instance, "layer": 0, "kind": "all_to_all",
        "backward": False, "members": sorted(sizes), "group": f"g{sorted(sizes)}", "tier": "within host",
        "complete": True, "start_ns": 10_000 * instance, "end_ns": 10_000 * instance + span, "transfer_ns": span,
        "exposed_transfer_ns": round(exposed * span), "bottleneck_bytes": sizes[most],
        "mean_bytes": sum(sizes.values()) / len(sizes), "bottleneck_rank": most, "bottleneck_receives": receives,
    }  # fmt: skip
    return [
        dict.fromkeys(SCHEMA) | shared | {"rank": rank, "remote_bytes": size} | rest for rank, size in sizes.items()
    ]


def causes(
    rows: Sequence[dict[str, Any]], *, num_steps: int = 1, models: Any = MODELS, links: Sequence[SlowLink] = ()
) -> list[tuple[str, int | None, float]]:
    found = transfer_causes(transfer_losses(pl.DataFrame(list(rows), SCHEMA), models, links), num_steps)
    assert found["charged_ns"].sum() == 0
    assert found["transfer_ns"].to_list() == found["cost_ns"].to_list()
    return found.select("cause", "culprit", "cost_ns").rows()


def test_an_uneven_exchange_costs_the_bottleneck_over_the_mean() -> None:
    """300 bytes where 200 would do at 2 bytes per ns: 50 ns, half of which compute hides."""
    rows = exchange(0, {0: 300, 1: 100, 2: 200}, span=250, exposed=0.5)
    assert causes(rows) == [("volume_imbalance", 0, pytest.approx(25))]
    assert causes(rows, num_steps=5) == [("volume_imbalance", 0, pytest.approx(5))]


def test_an_uneven_exchange_costs_no_more_than_it_lasts() -> None:
    rows = exchange(0, {0: 9_000, 1: 0, 2: 0}, span=250)
    assert causes(rows) == [("volume_imbalance", 0, pytest.approx(250))]


@pytest.mark.parametrize(
    ("phase", "backward", "receives", "cause"),
    [
        ("dispatch", False, True, "expert_load"),  # hot experts draw rows
        ("dispatch", False, False, "volume_imbalance"),  # a rank that sends more than the others has no hot experts
        ("combine", False, False, "expert_load"),  # and give them back
        ("combine", False, True, "volume_imbalance"),
        ("combine", True, True, "expert_load"),  # the backward pass goes the other way
        ("dispatch", True, False, "expert_load"),
        (None, None, True, "volume_imbalance"),
    ],
)
def test_what_hot_experts_make_uneven_is_load(
    phase: str | None, backward: bool | None, receives: bool, cause: str
) -> None:
    rows = exchange(0, {0: 300, 1: 100}, span=250, receives=receives, phase=phase, backward=backward)
    assert causes(rows) == [(cause, 0, pytest.approx(50))]


def test_without_a_model_or_with_ranks_missing_nothing_is_charged() -> None:
    rows = exchange(0, {0: 300, 1: 100}, span=250)
    assert causes(rows, models={}) == []
    assert causes(exchange(0, {0: 300, 1: 100}, span=250, tier="across hosts")) == []
    assert causes(exchange(0, {0: 300, 1: 100}, span=250, complete=False)) == []


def side_by_side(slowdown: float, number: int = 6, **rest: Any) -> list[dict[str, Any]]:
    """Two groups of two ranks that swap 200 bytes turn after turn; the second group's links are slower."""
    rows = []
    for turn in range(number):
        rows += exchange(2 * turn, {0: 200, 1: 200}, span=400, turn=turn, **rest)
        rows += exchange(2 * turn + 1, {2: 200, 3: 200}, span=round(400 * slowdown), turn=turn, **rest)
    return rows


def test_a_group_slower_than_the_one_beside_it_is_charged_for_the_difference() -> None:
    assert causes(side_by_side(2.0)) == [("slow_network", None, pytest.approx(6 * 400))]
    assert causes(side_by_side(2.0, exposed=0.25)) == [("slow_network", None, pytest.approx(6 * 100))]


def test_a_little_slower_or_seen_too_seldom_is_no_slow_link() -> None:
    assert causes(side_by_side(1.2)) == []
    assert causes(side_by_side(2.0, number=5)) == []
    alone = [row for row in side_by_side(2.0) if row["rank"] >= 2]
    assert causes(alone) == []


def test_groups_side_by_side_hold_up_the_step_once() -> None:
    """A third group is slower still: each turn costs what the slowest loses, not the sum."""
    rows = side_by_side(2.0)
    for turn in range(6):
        rows += exchange(100 + turn, {4: 200, 5: 200}, span=1600, turn=turn)
    assert causes(rows) == [("slow_network", None, pytest.approx(6 * 1200))]


def test_turns_of_another_pipeline_stage_are_other_times() -> None:
    one, other = (exchange(stage, {0: 300, 1: 100, 2: 200}, span=250, turn=0, stage=stage) for stage in (0, 1))
    assert causes([*one, *other]) == [("volume_imbalance", 0, pytest.approx(100))]


def test_reductions_over_a_slow_groups_links_lose_as_much() -> None:
    """A reduction over all ranks takes 900 ns; at twice the time per byte half of it is lost."""
    rows = side_by_side(2.0)
    reduction = exchange(
        500, {rank: 0 for rank in range(4)}, span=900, kind="all_reduce", turn=50, bottleneck_bytes=None
    )
    assert causes([*rows, *reduction]) == [("slow_network", None, pytest.approx(6 * 400 + 450))]


def test_messages_of_a_slow_pair_lose_what_the_fastest_pair_would_not_take() -> None:
    def between(pair: tuple[int, int], span: int, turn: int) -> list[dict[str, Any]]:
        instance = 100 * pair[0] + turn
        sides = exchange(instance, dict.fromkeys(pair, 0.0), span=span, kind="p2p", turn=turn, bottleneck_bytes=None)
        return [side | {"send_bytes": 1_000} for side in sides]

    rows = [row for turn in range(6) for row in (*between((0, 2), 400, turn), *between((1, 3), 1_000, turn))]
    assert causes(rows) == [("slow_network", None, pytest.approx(6 * 600))]
    link = SlowLink("within host", (1, 5), (1,), 0.4, 10.0, "data sheet", 9)
    assert causes(rows, links=[link]) == [("slow_network", 1, pytest.approx(6 * 600))]
    assert causes([row for row in rows if row["turn"] < 5]) == []


def test_a_slow_link_costs_what_its_exchanges_and_reductions_take_beyond_usual_links() -> None:
    """Two exchanges of 1,000 ns that usual links would do in 400, and a reduction that loses six tenths of 500."""
    members = {rank: 100.0 for rank in range(3)}
    rows = [*exchange(0, members, span=1_000, even_links_ns=400.0), *exchange(1, members, span=1_000, exposed=0.5,
            even_links_ns=400.0)]  # fmt: skip
    rows += exchange(2, dict.fromkeys(range(3), 0.0), span=500, kind="all_reduce", bottleneck_bytes=None)
    rows += exchange(3, {0: 0.0, 2: 0.0}, span=500, kind="all_reduce", bottleneck_bytes=None)  # not over rank 1's link
    link = SlowLink("within host", (0, 1, 2), (1,), 0.4, 10.0, "data sheet", 9)
    assert causes(rows, links=[link]) == [("slow_network", 1, pytest.approx(600 + 300 + 300))]


def test_a_slow_host_has_no_single_culprit_and_its_group_is_not_compared_again() -> None:
    rows = side_by_side(2.0, even_links_ns=400.0)
    link = SlowLink("within host", (2, 3), (2, 3), 0.5, 1.0, "groups beside it", 9)
    assert causes(rows, links=[link]) == [("slow_network", None, pytest.approx(6 * 400))]
