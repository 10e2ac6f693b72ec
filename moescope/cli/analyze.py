"""``moescope analyze DIR``: the verdict and the numbers behind it, as text or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from moescope.cli.failon import fail_on_option, met_conditions, tell
from moescope.cli.options import HostGroups, directory_argument, json_option, reading_options
from moescope.errors import ExitCode

EXTRAS = ("collectives", "load", "gemms", "memory", "telemetry")


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


@click.command(short_help="Say where the step went, who caused it, and what a fix is worth.")
@directory_argument
@json_option
@click.option("--with", "with_", type=NamesType(), default=(), help=f"Add to the JSON: {', '.join(EXTRAS)}.")
@reading_options
@click.option(
    "--baseline", type=click.Path(path_type=Path), help="Hold the run against this file of moescope baseline."
)
@click.option("--explain", is_flag=True, help="Print the numbers behind each finding, and where to see them.")
@fail_on_option
def command(
    path: Path,
    *,
    as_json: bool,
    explain: bool,
    with_: tuple[str, ...],
    hosts: HostGroups | None,
    rank_regex: str | None,
    workers: int | None,
    cache: bool,
    baseline: Path | None,
    fail_on: Sequence[str],
) -> int:
    """Say where the step of a run went, which rank and layer caused it, and what each fix would be worth.

    DIR is a run made by `moescope train`, `moescope simulate` or the hooks, or any folder of Kineto traces
    (*.json, *.json.gz), one per rank, from any framework.
    """
    from moescope.cli.progress import progress
    from moescope.cli.verdict import print_analysis
    from moescope.views.build import analyze
    from moescope.views.json import to_json

    with progress("Analysing") as show:
        analysis = analyze(
            path,
            hosts=hosts,
            rank_regex=rank_regex,
            workers=workers,
            cache=cache,
            baseline=baseline,
            progress=show,
        )
    if as_json:
        click.echo(json.dumps(to_json(analysis, with_)))
    else:
        print_analysis(analysis, explain=explain)
    met = met_conditions(analysis.findings, fail_on)
    tell(met)
    return ExitCode.CONDITION_MET if met else ExitCode.DONE
