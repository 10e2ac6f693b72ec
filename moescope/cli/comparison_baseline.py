"""Two baselines compared, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from moescope.cli.text import printable

if TYPE_CHECKING:
    from moescope.views.compare.baseline import BaselineComparison, SettingChange

MAX_FIGURES = 20
MAX_TEXT = 60


def print_baselines(comparison: BaselineComparison) -> None:
    """Print what changed: wrong results first, then figures, lagging ranks, and what they were measured on."""
    click.echo(printable(f"A {comparison.before}"))
    click.echo(printable(f"B {comparison.after}"))
    for text in comparison.wrong:
        click.echo(printable(f"WRONG RESULT in B: {text}"))
    click.echo(f"\n{len(comparison.figures)} of {comparison.num_figures} figures changed by 10 % or more")
    for change in comparison.figures[:MAX_FIGURES]:
        word = "better" if change.better else "worse"
        values = f"{change.before:.4g} -> {change.after:.4g} {change.unit}"
        click.echo(printable(f"  {change.relative:+8.1%} {word:>6}  {change.figure}: {values}"))
    if len(comparison.figures) > MAX_FIGURES:
        click.echo(f"  and {len(comparison.figures) - MAX_FIGURES} more: see --json")
    for lag in comparison.lagging:
        before = f", {lag.before:.2f} before" if lag.before is not None else ""
        click.echo(
            printable(f"rank {lag.rank} on {lag.host}: {lag.what} take {lag.after:.2f} times the median rank's{before}")
        )
    click.echo("\nversions, settings, devices and links" + ("" if comparison.settings else ": no difference"))
    for setting in comparison.settings:
        click.echo(printable(f"  {setting.where} {setting.what}: {_sides(setting)}"))


def _sides(setting: SettingChange) -> str:
    old, new = ("not there" if text is None else " ".join(text.split()) for text in (setting.before, setting.after))
    if max(len(old), len(new)) > MAX_TEXT:
        return "differs (see --json)"
    return f"{old} -> {new}"
