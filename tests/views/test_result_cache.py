"""Stored results do not pile up while a run goes on."""

from __future__ import annotations

import os
from pathlib import Path

from analysis_fixture import example

from moescope.views import cache


def test_only_the_latest_results_are_kept(tmp_path: Path) -> None:
    analysis = example()
    for number in range(cache.MOST_RESULTS + 3):
        file = tmp_path / f"analysis-{number:02}.json"
        cache.save(file, analysis)
        os.utime(file, ns=(number * 10**9, number * 10**9))
    (tmp_path / "other.json").write_text("{}")
    cache.save(tmp_path / "analysis-99.json", analysis)
    names = sorted(file.name for file in tmp_path.iterdir())
    oldest = 4  # of three too many and one more
    assert names == [
        *(f"analysis-{n:02}.json" for n in range(oldest, cache.MOST_RESULTS + 3)),
        "analysis-99.json",
        "other.json",
    ]
    assert cache.load(tmp_path / "analysis-99.json") == analysis
