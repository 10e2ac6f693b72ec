"""``moescope compare A B``: what changed from one run to another, and whether noise explains it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moescope.cli.options import FiniteRange, HostGroups, examples, json_option, reading_options
from moescope.cli.text import printable
from moescope.errors import ExitCode

if TYPE_CHECKING:
    from moescope.views.compare import Comparison

THRESHOLD = re.compile(r"([\w.:]+)([+-])(\d+(?:\.\d+)?)%")


class ChangeCondition(click.ParamType[str]):
    """A threshold on a figure, ``step_ns+5%`` or ``tokens_per_s-5%``, or the code of a finding that must not be new."""

    name = "condition"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the condition; fail on what is neither."""
        from moescope.findings.codes import FINDING_CODES

        if value not in FINDING_CODES and not THRESHOLD.fullmatch(str(value)):
            self.fail(f"{value!r} is neither a threshold such as step_ns+5% nor a finding code.", param, ctx)
        return str(value)


@click.command(
    short_help="Say what changed between two runs, and whether noise explains it.",
    epilog=examples(
        "compare runs/before runs/after",
        "compare runs/main runs/change --fail-on step_ns+5%",
        "compare monday.json today.json",
    ),
)
@click.argument("path_a", metavar="A", type=click.Path(path_type=Path))
@click.argument("path_b", metavar="B", type=click.Path(path_type=Path))
@json_option
@click.option(
    "--fail-on",
    type=ChangeCondition(),
    multiple=True,
    help="Exit with 5 when a figure of B is past A's by more than this and than noise (step_ns+5%, tokens_per_s-5%), "
    "or when B has a finding of this code that A has not. Repeatable.",
)
@click.option(
    "--to-loss",
    type=FiniteRange(min=0),
    metavar="LOSS",
    help="The training loss to which time and tokens are compared.  [default: the lowest that both reach]",
)
@reading_options
def command(
    path_a: Path,
    path_b: Path,
    *,
    as_json: bool,
    fail_on: Sequence[str],
    to_loss: float | None,
    hosts: HostGroups | None,
    rank_regex: str | None,
    workers: int | None,
    cache: bool,
) -> int:
    """Compare run B with run A: step and parts, waits, load, memory, rates, findings and settings.

    Two files of `moescope baseline`, or of what nccl-tests print, are compared as such: figures, lagging ranks, hosts,
    versions, settings, links.

    A figure that is known for several steps has a noise band, twice the standard error of the difference of means; what
    stays inside is no change.
    """
    from moescope.align.baseline import is_baseline
    from moescope.align.nccltests import is_nccl_tests

    if any(is_baseline(path) or is_nccl_tests(path) for path in (path_a, path_b)):
        _compare_baselines(path_a, path_b, as_json=as_json, fail_on=fail_on)
        return ExitCode.DONE
    from moescope.cli.comparison import print_comparison
    from moescope.cli.progress import progress
    from moescope.views.build import analyze
    from moescope.views.compare import compare
    from moescope.views.json import comparison_to_json

    runs = []
    for path in (path_a, path_b):
        with progress(f"Analysing {path.name}") as show:
            runs.append(analyze(path, hosts=hosts, rank_regex=rank_regex, workers=workers, cache=cache, progress=show))
    comparison = compare(runs[0], runs[1], to_loss=to_loss)
    met = [condition for condition in fail_on if meets(comparison, condition)]
    if as_json:
        click.echo(json.dumps(comparison_to_json(comparison)))
    else:
        print_comparison(comparison)
    for condition in met:
        click.echo(printable(f"moescope: --fail-on {condition} holds"), err=True)
    return ExitCode.CONDITION_MET if met else ExitCode.DONE


def _compare_baselines(path_a: Path, path_b: Path, *, as_json: bool, fail_on: Sequence[str]) -> None:
    """Two baselines; conditions speak of runs and are refused."""
    from moescope.cli.comparison_baseline import print_baselines
    from moescope.views.compare.baseline import compare_baselines
    from moescope.views.json import baselines_to_json

    if fail_on:
        raise click.UsageError("--fail-on compares runs; A and B are baselines.")
    comparison = compare_baselines(path_a, path_b)
    if as_json:
        click.echo(json.dumps(baselines_to_json(comparison)))
    else:
        print_baselines(comparison)


def meets(comparison: Comparison, condition: str) -> bool:
    """Return whether a condition holds; a threshold on a figure that a run lacks is an error, not a pass."""
    from moescope.errors import DataMissingError

    match = THRESHOLD.fullmatch(condition)
    if match is None:
        return any(finding.code == condition for finding in comparison.new_findings)
    metric, sign, percent = match[1], match[2], float(match[3])
    change = next((change for change in comparison.changes if change.metric == metric), None)
    if change is None or change.relative is None:
        known = ", ".join(change.metric for change in comparison.changes if change.relative is not None)
        raise DataMissingError(f"--fail-on {condition}: the runs do not both have {metric}", hint=f"known: {known}")
    past = change.relative * 100 if sign == "+" else -change.relative * 100
    return past > percent and change.verdict != "within noise"
