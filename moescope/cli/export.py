"""``moescope export DIR``: one aligned trace of all ranks for Perfetto, and every table as a file."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from moescope.cli.options import Reading, baseline_option, directory_argument, examples, json_option, reading_options
from moescope.cli.text import printable
from moescope.errors import ExitCode
from moescope.outputs import EXPORT, check_place, write_manifest

if TYPE_CHECKING:
    from moescope.cli.progress import Progress
    from moescope.run import Run

TRACE_NAME = "trace.json.gz"


@click.command(
    short_help="Write one aligned trace for Perfetto, and every table as Parquet or CSV.",
    epilog=examples("export runs/first", "export runs/first -o out --tables csv --no-trace"),
)
@directory_argument
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder. [default: DIR-export]")
@click.option("--tables", type=click.Choice(["parquet", "csv", "none"]), default="parquet", show_default=True)
@click.option("--trace/--no-trace", default=True, help="Write the aligned trace. [default: on]")
@click.option("--force", is_flag=True, help="Replace an earlier export.")
@json_option
@reading_options
@baseline_option
def command(
    path: Path,
    *,
    out: Path | None,
    tables: str,
    trace: bool,
    force: bool,
    as_json: bool,
    **reading: Unpack[Reading],
) -> int:
    """Write one trace of all ranks on the common clock, for Perfetto, and every table of the analysis.

    The trace keeps each rank's events and adds tracks for steps, waits, transfers, findings, memory and received bytes.
    In CSV files, text that a spreadsheet would run as a formula stands behind an apostrophe.
    """
    from moescope.cli.progress import progress
    from moescope.run import Run

    target = out or Path(f"{path.resolve().name or 'moescope'}-export")
    check = partial(check_place, target, EXPORT, force=force, reads=[path, reading["baseline"]])
    check()
    with progress("Exporting") as show:
        run = Run(path, **reading, progress=show)
        with whole_folder(target, check) as folder:
            written = [*([write_trace(run, folder, show)] if trace else []), *write_tables(run, folder, tables)]
            sizes = {file: (folder / file).stat().st_size for file in written}
            write_manifest(folder, written)
    if as_json:
        files = [{"file": str(target / file), "size_bytes": size} for file, size in sizes.items()]
        click.echo(json.dumps({"schema": "moescope.export/1", "ok": True, "folder": str(target), "files": files}))
        return ExitCode.DONE
    if tables != "none":
        size = sum(size for file, size in sizes.items() if file != TRACE_NAME)
        click.echo(printable(f"Wrote {len(run.tables)} tables, {target}/*.{tables} ({size / 1e6:.2f} MB)."))
    if trace:
        click.echo(printable(f"Wrote {target / TRACE_NAME} ({sizes[TRACE_NAME] / 1e6:.2f} MB)."))
        click.echo(printable(f"Next: open {target / TRACE_NAME} at https://ui.perfetto.dev"))
    return ExitCode.DONE


@contextmanager
def whole_folder(target: Path, check: Callable[[], None]) -> Iterator[Path]:
    """Yield a folder beside ``target`` that takes its place when everything in it is written and ``check`` passes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        (new := beside / "new").mkdir()
        yield new
        check()
        if target.exists():
            target.rename(old := beside / "old")
            try:
                new.rename(target)
            except BaseException:
                old.rename(target)
                raise
        else:
            new.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_trace(run: Run, folder: Path, show: Progress) -> str:
    """Write the aligned trace rank by rank and return its name."""
    from isal import igzip

    from moescope.views.perfetto import chunks

    analysis, traces = run.analysis, run.directory.ranks
    with open(folder / TRACE_NAME, "wb") as raw, igzip.open(raw, "wb") as file:  # type: ignore[no-untyped-call]
        for number, chunk in enumerate(chunks(analysis, traces)):
            file.write(chunk.encode())
            show(min(number, len(traces)), len(traces), TRACE_NAME)
    return TRACE_NAME


def write_tables(run: Run, folder: Path, suffix: str) -> list[str]:
    """Write every table of the analysis and return their names."""
    from moescope.views.tables import write_table

    if suffix == "none":
        return []
    names = [f"{name}.{suffix}" for name in run.tables]
    for name, file in zip(run.tables, names, strict=True):
        write_table(run.table(name), folder / file)
    return names
