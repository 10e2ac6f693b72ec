"""Panels of a comparison: the values that compare() gives, sums that stay sums, noise bands where there are steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_fixture import bare, example

from moescope.views.compare import compare
from moescope.views.figures import compare as figures_compare
from moescope.views.model import Analysis
from moescope.views.panels import compare as panels


def slower(analysis: Analysis, part: str, by_ns: int) -> Analysis:
    """The same run with one part of every rank's step longer."""
    ranks = tuple(
        replace(r, window_ns=r.window_ns + by_ns, parts_ns={**r.parts_ns, part: r.parts_ns[part] + by_ns})
        for r in analysis.ranks
    )
    steps = tuple(replace(s, window_ns=s.window_ns + by_ns) for s in analysis.steps)
    return replace(analysis, ranks=ranks, steps=steps)


A = example(hostile=False)
B = slower(A, "comm.all_to_all.transfer", 5_000_000)


def test_tables_hold_the_comparisons_own_values() -> None:
    comparison = compare(A, B)
    rows = {row[0]: row for row in panels.times_panel(comparison).tables[0].rows}
    for change in panels.time_changes(comparison):
        row = rows[panels.metric_name(change.metric)]
        assert row[1:] == (change.a, change.b, change.difference, change.relative, change.noise, change.verdict)
    assert rows["step"][3] == 5_000_000
    assert rows["all-to-all transfer"][6] == "worse"
    sides = panels.sides_panel(comparison).tables[0].rows
    assert sum(row[2] for row in sides) - sum(row[1] for row in sides) == pytest.approx(5_000_000)


def test_readings_say_what_changed_most_and_by_how_much() -> None:
    comparison = compare(A, B)
    assert panels.sides_panel(comparison).reading.startswith("B's step is 5.00 ms longer")
    assert panels.times_panel(comparison).reading == "Most of all changed all-to-all transfer: 5.00 ms longer in B."
    assert panels.times_panel(compare(A, A)).reading == "No part of the step changed by more than noise."
    assert panels.figures_panel(comparison).reading.endswith("none is better or worse in B.")


def test_single_steps_are_said_to_have_no_noise_band() -> None:
    assert panels.times_panel(compare(A, B)).notes == ()
    one = example(num_steps=1, hostile=False)
    assert panels.times_panel(compare(one, B)).notes == (panels.NO_BAND,)


def test_what_neither_run_has_is_named() -> None:
    nothing = replace(bare(), steps=(), ranks=(), waits=())
    comparison = compare(nothing, nothing)
    assert panels.sides_panel(comparison).empty == panels.NO_TIMES
    assert panels.times_panel(comparison).empty == panels.NO_TIMES
    assert panels.figures_panel(comparison).empty == panels.NO_FIGURES
    assert panels.verdicts_panel(comparison).empty is not None
    assert panels.settings_panel(comparison).empty is not None
    for draw in (figures_compare.sides_figure, figures_compare.differences_figure):
        with pytest.raises(ValueError, match="no "):
            draw(comparison)


def test_findings_and_settings_that_differ_are_listed() -> None:
    comparison = compare(A, replace(A, findings=A.findings[1:], provenance={**A.provenance, "git_commit": "e" * 400}))
    assert [row[:4] for row in panels.verdicts_panel(comparison).tables[0].rows] == [
        ("gone in B", "critical", "load-imbalance", 2)
    ]
    ((name, before, after),) = panels.settings_panel(comparison).tables[0].rows
    assert (name, before) == ("git_commit", "da72c60")
    assert after == "e" * panels.MOST_CHARACTERS + "…"


def test_figures_hold_the_same_values() -> None:
    comparison = compare(A, B)
    sides = figures_compare.sides_figure(comparison)
    totals = [sum(trace.x[i] for trace in sides.data) for i in range(2)]
    assert totals[1] - totals[0] == pytest.approx(5.0)
    bars = figures_compare.differences_figure(comparison, "dark").data[0]
    changes = [c for c in panels.time_changes(comparison) if c.difference is not None]
    shown = [c for c in changes if c.metric != "time_to_shared_loss_ns"]  # of the whole run, not of a step
    assert list(bars.x) == pytest.approx([c.difference / 1e6 for c in shown])
    assert list(bars.error_x.array) == pytest.approx([(c.noise or 0) / 1e6 for c in shown])
