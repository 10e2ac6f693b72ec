"""``moescope report DIR``: one HTML file that opens anywhere without a network."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from moescope.cli.options import HostGroups, directory_argument, json_option, reading_options
from moescope.errors import ExitCode

MEGABYTE = 1_000_000


@click.command(short_help="Write the verdict and its evidence as one HTML file to pass on.")
@directory_argument
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file. [default: DIR-report.html]"
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--redact/--no-redact", default=True, help="Take out host names and folders. [default: on]")
@click.option("--max-mb", type=click.FloatRange(min=0.2), default=5.0, show_default=True, help="Cut tables to fit.")
@json_option
@reading_options
def command(
    path: Path,
    *,
    out: Path | None,
    force: bool,
    redact: bool,
    max_mb: float,
    as_json: bool,
    hosts: HostGroups | None,
    rank_regex: str | None,
    workers: int | None,
    cache: bool,
) -> int:
    """Write one HTML file with the verdict, the parts of every rank's step, waits, load, memory, clocks and inputs.

    The file asks the network for nothing, prints, follows the reader's dark or light setting, and is the same, byte
    for byte, for the same input. DIR is a run or any folder of Kineto traces.
    """
    import json

    from moescope.cli.progress import progress
    from moescope.cli.text import printable
    from moescope.report import refuse_existing, write_report
    from moescope.views.build import analyze

    target = out or Path(f"{path.resolve().name or 'moescope'}-report.html")
    refuse_existing(target, force=force)
    with progress("Analysing") as show:
        analysis = analyze(path, hosts=hosts, rank_regex=rank_regex, workers=workers, cache=cache, progress=show)
    size = write_report(analysis, target, force=force, hide_names=redact, budget_bytes=int(max_mb * MEGABYTE))
    if as_json:
        click.echo(json.dumps({"schema": "moescope.report/1", "ok": True, "file": str(target), "size_bytes": size}))
    else:
        click.echo(printable(f"Wrote {target} ({size / MEGABYTE:.2f} MB)."))
        if size > max_mb * MEGABYTE:
            click.echo(f"It is larger than {max_mb:g} MB: the charts alone take that much.", err=True)
        click.echo(printable(f"Next: moescope serve {shlex.quote(str(path))}    the same numbers with the timeline"))
    return ExitCode.DONE
