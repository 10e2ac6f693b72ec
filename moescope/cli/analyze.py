"""``moescope analyze DIR``: the verdict and the numbers behind it, as text or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from moescope.cli.failon import fail_on_option, met_conditions, tell
from moescope.cli.options import Reading, baseline_option, directory_argument, examples, json_option, reading_options
from moescope.errors import ExitCode

if TYPE_CHECKING:
    from moescope.views.model import Analysis

EXTRAS = ("collectives", "load", "gemms", "memory", "host", "library", "telemetry")


class NamesType(click.ParamType[tuple[str, ...]]):
    """Comma-separated names out of a fixed set."""

    name = "names"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names; fail on one that is not in the set."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        for name in names:
            if name not in EXTRAS:
                self.fail(f"{name!r} is not one of {', '.join(EXTRAS)}.", param, ctx)
        return names


@click.command(
    short_help="Say where the step went, who caused it, and what a fix is worth.",
    epilog=examples(
        "analyze runs/first",
        "analyze traces --hosts 0-7,8-15 --explain",
        "analyze runs/first --json --with collectives,load",
    ),
)
@directory_argument
@json_option
@click.option("--with", "with_", type=NamesType(), default=(), help=f"Add to the JSON: {', '.join(EXTRAS)}.")
@reading_options
@baseline_option
@click.option("--explain", is_flag=True, help="Print the numbers behind each finding, and where to see them.")
@click.option("--cross-check", type=click.Choice(["hta"]), help="Run this tool too and explain each difference.")
@click.option("--hta-python", metavar="PYTHON", help="The Python that has HTA. [default: this one]")
@fail_on_option
def command(
    path: Path,
    *,
    as_json: bool,
    explain: bool,
    with_: tuple[str, ...],
    cross_check: str | None,
    hta_python: str | None,
    fail_on: Sequence[str],
    **reading: Unpack[Reading],
) -> int:
    """Say where the step of a run went, which rank and layer caused it, and what each fix would be worth.

    DIR is a run made by `moescope train`, `moescope simulate` or the hooks, or any folder of Kineto traces
    (*.json, *.json.gz), one per rank, from any framework.
    """
    from moescope.cli.cross_check import print_cross_check
    from moescope.cli.progress import progress
    from moescope.cli.verdict import print_analysis
    from moescope.crosscheck.hta import cross_check as run_hta
    from moescope.trace import open_directory
    from moescope.views.build import analyze
    from moescope.views.json import plain, to_json

    with progress("Analysing") as show:
        analysis = analyze(path, **reading, progress=show)
    checked = None
    if cross_check is not None:
        with progress("Cross-checking") as show:
            checked = run_hta(
                open_directory(path, rank_regex=reading["rank_regex"], workers=reading["workers"]), hta_python, show
            )
    if as_json:
        more = {} if checked is None else {"cross_check": plain(checked)}
        click.echo(json.dumps(to_json(analysis, with_) | more))
    else:
        print_analysis(analysis, explain=explain)
        if checked is not None:
            print_cross_check(checked, _idle_by_rank(analysis))
    met = met_conditions(analysis.findings, fail_on)
    tell(met)
    return ExitCode.CONDITION_MET if met else ExitCode.DONE


def _idle_by_rank(analysis: Analysis) -> dict[int, dict[str, int]]:
    """The idle parts that hold any time, by rank, summed over its steps, ns."""
    found: dict[int, dict[str, int]] = {}
    for row in analysis.ranks:
        own = found.setdefault(row.rank, {})
        for part, ns in row.parts_ns.items():
            if part.startswith("idle.") and ns:
                own[part] = own.get(part, 0) + ns
    return found
