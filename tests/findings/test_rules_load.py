"""The router's rules: which layers are named, and when they keep silent."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from finding_inputs import inputs

from moescope.findings import findings
from moescope.findings.inputs import Inputs

SCHEMA = {"layer": pl.Int64, "entropy": pl.Float64, "dead_share": pl.Float64, "dropped_share": pl.Float64}


def with_layers(*layers: tuple[int, float | None, float | None, float | None]) -> Inputs:
    return replace(inputs(), load_layers=pl.DataFrame(list(layers), SCHEMA, orient="row"))


def codes(given: Inputs) -> set[str]:
    return {finding.code for finding in findings(given)}


def test_the_most_collapsed_layer_is_named() -> None:
    given = with_layers((1, 0.9, 0.0, None), (2, 0.4, 0.25, None), (3, 0.2, 0.25, None))
    found = next(f for f in findings(given) if f.code == "router-collapse")
    assert found.layer == 3
    assert found.evidence["layers"] == [3, 2]


def test_half_of_the_experts_idle_is_a_collapse_whatever_the_entropy() -> None:
    assert "router-collapse" in codes(with_layers((1, 0.8, 0.5, None)))
    assert "router-collapse" not in codes(with_layers((1, 0.8, 0.49, None)))


@pytest.mark.parametrize(("share", "speaks"), [(0.01, True), (0.0099, False), (None, False)])
def test_drops_are_reported_from_one_percent(share: float | None, speaks: bool) -> None:
    assert ("dropped-tokens" in codes(with_layers((1, 0.9, 0.0, 0.001), (2, 0.9, 0.0, share)))) is speaks


def test_nothing_is_said_where_no_counts_per_expert_are_known() -> None:
    assert not codes(with_layers((1, None, None, None))) & {"router-collapse", "dropped-tokens"}
