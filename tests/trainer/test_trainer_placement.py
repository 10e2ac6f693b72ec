"""Placement moves the load between ranks; what a token is routed to and what is learned stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rank_jobs
from hypothesis import given
from hypothesis import strategies as st
from miniature import mini_config
from rank_pool import RankPool

from moescope.errors import DataMissingError, MoescopeError
from moescope.telemetry import Telemetry, open_telemetry
from moescope.trainer.placement import (
    balanced_placement,
    contiguous_placement,
    described,
    member_loads,
    placements_of,
)
from moescope.trainer.received import busiest_rank

Observed = tuple[list[float], list[list[int]], list[list[list[float]]]]


def test_the_busiest_expert_goes_first_to_the_member_with_least_load() -> None:
    """9 to member 0, 7 to 1, 4 to 1 (11), 3 to 0 (12), 2 to 1 (13: full), 1 to 0 (13)."""
    assert balanced_placement([1, 2, 3, 4, 7, 9], 2) == [0, 1, 0, 1, 1, 0]
    assert member_loads([1, 2, 3, 4, 7, 9], [0, 1, 0, 1, 1, 0], 2) == [13, 13]


@given(st.lists(st.integers(0, 1000), min_size=12, max_size=12), st.sampled_from([2, 3, 4, 6]))
def test_measured_counts_never_place_worse_than_none(loads: list[int], ep_size: int) -> None:
    placement = balanced_placement(loads, ep_size)
    assert sorted(placement) == sorted(contiguous_placement(12, ep_size))
    heaviest = max(member_loads(loads, placement, ep_size))
    assert heaviest <= max(member_loads(loads, contiguous_placement(12, ep_size), ep_size))


@pytest.fixture(scope="module")
def contiguous(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Observed]]:
    """An observed run with experts in order, and what its ranks saw."""
    out = tmp_path_factory.mktemp("contiguous")
    return out, ranks.run(rank_jobs.observe_placed, UNBALANCED, out)


UNBALANCED = mini_config(moe={"balance": "none"}, train={"global_batch_sequences": 8})


def test_counts_of_a_run_place_the_experts_of_the_next(
    ranks: RankPool, contiguous: tuple[Path, list[Observed]], tmp_path: Path
) -> None:
    """Losses and assignments are the same to the last one; the busiest rank receives less."""
    before, plain = contiguous
    config = mini_config(
        moe={"balance": "none"}, train={"global_batch_sequences": 8}, parallel={"placement_from": str(before)}
    )
    placed = ranks.run(rank_jobs.observe_placed, config, tmp_path)
    assert placed[0][0] == pytest.approx(plain[0][0], rel=2e-5)
    assert [counts for _, counts, _ in placed] == [counts for _, counts, _ in plain]
    placements = placements_of(config, 4)
    assert set(placements) == {1, 2}
    loads = plain[0][2]
    now = busiest_rank(loads, placements)
    then = busiest_rank(loads, dict.fromkeys((1, 2), contiguous_placement(8, 4)))
    assert now is not None
    assert then is not None
    assert now < then
    assert _received(tmp_path) == [member_loads(layer, placements[i + 1], 4) for i, layer in enumerate(_counts(before))]


def _telemetry(run: Path) -> Telemetry:
    telemetry = open_telemetry(run)
    assert telemetry is not None
    return telemetry


def _counts(run: Path) -> list[list[int]]:
    """Assignments of the whole run, by layer and expert."""
    load = _telemetry(run).expert_load
    return [
        [sum(column) for column in zip(*load.filter(load["layer"] == layer)["counts"].to_list(), strict=True)]
        for layer in (1, 2)
    ]


def _received(run: Path) -> list[list[float]]:
    """Rows that each rank's experts really received, by layer, from the bytes of the dispatches."""
    table = _telemetry(run).collective
    rows = table.filter((table["phase"] == "dispatch") & ~table["backward"])
    return [
        [
            sum(sum(sizes) for sizes in rows.filter((rows["layer"] == layer) & (rows["rank"] == rank))["recv_bytes"])
            / (32 * 4)
            for rank in range(4)
        ]
        for layer in (1, 2)
    ]


def test_a_file_places_all_layers_alike_or_each_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "placement.json"
    config = mini_config(parallel={"placement_file": str(file)})
    first, second = [3, 0, 1, 2, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3]
    file.write_text(json.dumps({"parallel": {"expert_placement": first}}))
    assert placements_of(config, 4) == {1: first, 2: first}
    assert described(placements_of(config, 4)) == first
    file.write_text(json.dumps({"1": first, "2": second}))
    assert placements_of(config, 4) == {1: first, 2: second}
    assert described(placements_of(config, 4)) == {"1": first, "2": second}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[0, 0, 0, 0, 0, 1, 1, 1]", "4 on each of the members 0 to 1"),
        ("[0, 1]", "must place 8 experts"),
        ('{"experts": 3}', "holds no placement"),
        ('{"1": [0, 0, 0, 0, 1, 1, 1, 1]}', "holds no placement"),
        ("{", "cannot read the placement"),
    ],
)
def test_a_placement_that_does_not_fit_is_refused(tmp_path: Path, content: str, message: str) -> None:
    placement = tmp_path / "placement.json"
    placement.write_text(content)
    with pytest.raises(MoescopeError, match=message):
        placements_of(mini_config(parallel={"placement_file": str(placement)}), 2)


def test_a_run_without_counts_of_this_model_is_refused(contiguous: tuple[Path, list[Observed]], tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="holds no expert counts"):
        placements_of(mini_config(parallel={"placement_from": str(tmp_path)}), 2)
    other = mini_config(moe={"num_experts": 4}, parallel={"placement_from": str(contiguous[0])})
    with pytest.raises(DataMissingError, match="has no counts of 4 experts"):
        placements_of(other, 2)
