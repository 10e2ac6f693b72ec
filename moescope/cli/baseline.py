"""``moescope baseline``: measure what an allocation can do, apart from any model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moescope.cli.options import FiniteRange, examples, json_option
from moescope.cli.text import printable
from moescope.errors import MoescopeError
from moescope.outputs import BASELINE, check_place

if TYPE_CHECKING:
    from moescope.baseline.plan import Plan


class NumbersType(click.ParamType[tuple[int, ...]]):
    """Comma-separated positive numbers, or for ``separator`` x one weight such as 4096x2048."""

    name = "numbers"

    def __init__(self, separator: str = ","):
        self.separator = separator

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers; fail on anything else."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).lower().split(self.separator))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1 or (self.separator == "x" and len(numbers) != 2):
            example = "4096x2048" if self.separator == "x" else "64,256,1024"
            self.fail(f"{value!r} is not of the form {example}.", param, ctx)
        return numbers


@click.command(
    short_help="Measure what the machines can do, before any model.",
    epilog=examples("baseline --ranks 2", "baseline --run runs/first --only gemm --out gemm.json"),
)
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Local ranks to start.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("baseline.json"), show_default=True, help="The file."
)
@click.option("--only", multiple=True, metavar="PART", help="Measure only gemm, collectives or copies; repeatable.")
@click.option("--run", type=click.Path(path_type=Path), help="Take the weights and experts of this run's model.")
@click.option("--shape", "shapes", type=NumbersType("x"), multiple=True, metavar="NxK", help="A weight; repeatable.")
@click.option("--rows", type=NumbersType(), default=(), metavar="M,M,...", help="Rows (tokens per expert) to measure.")
@click.option("--groups", type=click.IntRange(min=1), help="Experts of a grouped product. [default: the run's, else 8]")
@click.option("--dtype", default="", help="bfloat16, float16 or float32. [default: bfloat16 on GPUs, else float32]")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Largest message. [default: 1 GiB on GPUs, else 16 MiB]")
@click.option(
    "--seconds", type=FiniteRange(min=0.001), default=0.05, show_default=True, help="Time of each measurement."
)
@click.option("--nccl-tests", "imported", multiple=True, metavar="[NAME=]FILE", help="Add the output of nccl-tests.")
@click.option("--force", is_flag=True, help="Replace an earlier baseline.")
@json_option
def command(ranks: int, *, out: Path, imported: tuple[str, ...], force: bool, as_json: bool, **options: Any) -> None:
    """Measure what an allocation can do: matrix products against their rows, collectives over message sizes, memory,
    copies and launches, with a record of hosts, devices, versions and settings, as one JSON file.

    Under torchrun it joins the ranks it is given, and --ranks does not apply. `moescope analyze DIR --baseline FILE`
    holds a run against it.
    """
    main_rank = os.environ.get("RANK", "0") == "0"
    if main_rank:
        read = [Path(text.rpartition("=")[2]) for text in imported]
        check_place(out, BASELINE, force=force, reads=[options["run"], *read])
    from moescope.align.nccltests import read_nccl_tests

    try:
        from moescope.baseline.launch import launch
        from moescope.baseline.measure import Job
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MoescopeError(
            "a baseline needs torch, which is not installed", hint="pip install 'moescope[train]'"
        ) from error
    plan = _plan(**options)
    rows = []
    for text in imported:
        name, _, file = text.rpartition("=")
        rows += read_nccl_tests(Path(file), name or None)
    launch(Job(plan, out, ("moescope", *sys.argv[1:]), tuple(rows)), ranks)
    if not main_rank:
        return
    found = json.loads(out.read_text(encoding="utf-8"))
    if as_json:
        click.echo(json.dumps({"ok": True, **found}))
        return
    _print(found)
    click.echo(printable(f"Wrote {out}"))
    click.echo(printable(f"Next: moescope analyze DIR --baseline {out}"))


def _plan(
    *,
    only: tuple[str, ...],
    run: Path | None,
    shapes: tuple[tuple[int, int], ...],
    rows: tuple[int, ...],
    groups: int | None,
    dtype: str,
    max_bytes: int | None,
    seconds: float,
) -> Plan:
    from moescope.baseline.plan import NUM_GROUPS, PARTS, Plan, weights_of_run

    known, experts = weights_of_run(run) if run is not None else ((), NUM_GROUPS)
    plan = Plan(only or PARTS, shapes or known, rows, groups or experts, dtype, max_bytes or 0, seconds=seconds)
    plan.check()
    return plan


def _print(found: dict[str, Any]) -> None:
    """The figures as columns of text, those of collectives as nccl-tests prints them."""
    click.echo(f"{found['world_size']} ranks, {found['backend']}, {found['device']}, {found['seconds']:.0f} s")
    if found["gemm"]:
        click.echo(f"\n# matrix products, {found['gemm'][0]['dtype']}")
        click.echo(f"#{'kind':>8}{'groups':>8}{'rows':>8}{'n':>8}{'k':>8}{'time':>12}{'rate':>12}")
        click.echo(f"#{'(us)':>52}{'(TFLOP/s)':>12}")
    for row in found["gemm"]:
        shape = "".join(f"{row[name]:>8}" for name in ("groups", "rows", "n", "k"))
        click.echo(f" {row['kind']:>8}{shape}{row['time_ns'] / 1e3:>12.1f}{row['rate_tflops']:>12.4g}")
    if found["collectives"]:
        click.echo("\n# collectives")
        head = f"{'size':>12}{'count':>12}{'type':>8}{'placed':>8}{'time':>12}{'algbw':>9}{'busbw':>9}{'wrong':>7}"
        click.echo(f"#{'name':>14}{head}")
        click.echo(f"#{'(B)':>26}{'(elements)':>12}{'(us)':>28}{'(GB/s)':>9}{'(GB/s)':>9}")
    for row in found["collectives"]:
        click.echo(
            f" {row['collective']:>14}{row['size_bytes']:>12}{row['count']:>12}{row['dtype']:>8}"
            f"{'in' if row['in_place'] else 'out':>8}{row['time_us']:>12.1f}{row['algbw_gb_per_s']:>9.3g}"
            f"{row['busbw_gb_per_s']:>9.3g}{'N/A' if row['wrong'] is None else row['wrong']:>7}"
        )
    click.echo()
    if found["memory"]:
        click.echo(f"memory {found['memory']['gb_per_s']:.1f} GB/s (read and written)")
    for row in found["copies"]:
        click.echo(f"{row['direction']} {row['size_bytes']} bytes {row['gb_per_s']:.1f} GB/s")
    if found["launch"]:
        launch = found["launch"]
        click.echo(f"launch {launch['launch_ns'] / 1e3:.1f} us, round trip {launch['round_trip_ns'] / 1e3:.1f} us")
