"""Likely reasons of slow transfers follow the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from moescope.findings.network_reasons import likely_reasons


def names(*args: float, **options: object) -> list[str]:
    found = likely_reasons(*args, **options)  # type: ignore[arg-type]
    return [reason.split(",")[0].split(" of ")[0] for reason in found]


@pytest.mark.parametrize(
    ("share", "reasons"),
    [
        (0.05, ["sockets instead"]),
        (0.2, []),
        (0.5, ["the wrong interface"]),
        (0.9, []),
    ],
)
def test_what_the_rate_alone_says(share: float, reasons: list[str]) -> None:
    assert names(share) == reasons


def test_single_slow_ranks_are_a_degraded_link() -> None:
    found = likely_reasons(0.2, slow_ranks=(5,), num_ranks=8)
    assert list(found) == ["a degraded link"]
    assert "only rank 5 of 8" in found["a degraded link"]
    assert names(0.2, slow_ranks=(0, 1), num_ranks=2) == []


def test_uneven_times_are_congestion_and_latency_is_no_fault_of_the_links() -> None:
    steady, uneven = np.full(20, 3.0), np.tile([2.0, 9.0], 10)
    assert names(0.2, ratios=steady) == []
    assert names(0.2, ratios=uneven) == ["congestion"]
    assert names(0.2, ratios=uneven[:6]) == []
    assert names(0.2, latency_share=0.6) == ["messages too small for the bandwidth"]
