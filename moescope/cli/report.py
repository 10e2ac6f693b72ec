"""``moescope report DIR``: one HTML file that opens anywhere without a network."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import click

from moescope.cli.options import (
    FiniteRange,
    Reading,
    baseline_option,
    directory_argument,
    examples,
    json_option,
    reading_options,
)
from moescope.errors import ExitCode

MEGABYTE = 1_000_000


@click.command(
    short_help="Write the verdict and its evidence as one HTML file to pass on.",
    epilog=examples(
        "report runs/first -o first.html", "report runs/first -o first.html --force --no-redact --budget 20"
    ),
)
@directory_argument
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: DIR-report.html]"
)
@click.option("--force", is_flag=True, help="Replace an earlier report.")
@click.option("--redact/--no-redact", default=True, help="Take out host names and folders. [default: on]")
@click.option(
    "--budget", "budget_mb", metavar="MB", type=FiniteRange(min=0.2), default=5.0, show_default=True,
    help="Size of the file; tables and the timeline are cut to fit.",
)  # fmt: skip
@json_option
@reading_options
@baseline_option
def command(
    path: Path,
    *,
    out: Path | None,
    force: bool,
    redact: bool,
    budget_mb: float,
    as_json: bool,
    **reading: Unpack[Reading],
) -> int:
    """Write one HTML file with the verdict, the timeline, the parts of every rank's step, waits, load, memory and more.

    The file asks the network for nothing, prints, follows the reader's dark or light setting, and is the same, byte
    for byte, for the same input. DIR is a run or any folder of Kineto traces.
    """
    import json

    from moescope.cli.progress import progress
    from moescope.cli.text import printable
    from moescope.outputs import REPORT, check_place
    from moescope.report import write_report
    from moescope.views.build import analyze, open_timeline
    from moescope.views.model import Analysis
    from moescope.views.timeline import Timeline

    target = out or Path(f"{path.resolve().name or 'moescope'}-report.html")
    check_place(target, REPORT, force=force, reads=[path, reading["baseline"]])
    with progress("Analysing") as show:
        analysis = analyze(path, **reading, progress=show)

    def timeline(shown: Analysis, rename: Callable[[str], str]) -> Timeline:
        return open_timeline(path, shown, **reading, rename=rename)

    done = write_report(
        analysis,
        target,
        force=force,
        hide_names=redact,
        budget_bytes=int(budget_mb * MEGABYTE),
        open_timeline=timeline,
    )
    if as_json:
        about = {"file": str(target), "size_bytes": done.size_bytes, "cuts": done.cuts}
        click.echo(json.dumps({"schema": "moescope.report/1", "ok": True, **about}))
    else:
        click.echo(printable(f"Wrote {target} ({done.size_bytes / MEGABYTE:.2f} MB)."))
        for one in done.cuts:
            click.echo(printable(f"Cut to fit {budget_mb:g} MB: {one}"), err=True)
        if done.size_bytes > budget_mb * MEGABYTE:
            click.echo(f"It is larger than {budget_mb:g} MB: the charts alone take that much.", err=True)
        click.echo(printable(f"Next: moescope serve {shlex.quote(str(path))}    the same numbers with the timeline"))
    return ExitCode.DONE
