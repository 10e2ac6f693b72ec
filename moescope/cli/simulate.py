"""``moescope simulate``: a run of a simulated cluster, with faults whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moescope.cli.options import json_option
from moescope.outputs import SIMULATED, check_place, remove_parts

EPILOG = """Faults, each as KIND or KIND:KEY=VALUE,KEY=VALUE; --list-faults shows them.

\b
  moescope simulate --out runs/healthy
  moescope simulate --fault expert_skew:rank=2,factor=2 --out runs/skewed
  moescope simulate --ranks 16 --fault slow_rank:rank=5 --fault clock --out runs/two-hosts
"""


@click.command(short_help="Simulate a cluster with known faults, to learn from and to test with.", epilog=EPILOG)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The run directory.")
@click.option("--ranks", type=click.IntRange(min=1), default=8, show_default=True, help="Ranks, one device each.")
@click.option("--ranks-per-host", type=click.IntRange(min=1), default=8, show_default=True, help="Devices of a host.")
@click.option(
    "--ep",
    "ep_size",
    type=click.IntRange(min=1),
    help="Ranks that share one set of experts. [default: all, at most 16]",
)
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Profiled steps.")
@click.option("--microbatches", type=click.IntRange(min=1), default=2, show_default=True, help="Microbatches a step.")
@click.option(
    "--tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Tokens per rank and microbatch."
)
@click.option(
    "--layers", type=click.IntRange(min=2), default=8, show_default=True, help="Decoder layers, the first one dense."
)
@click.option("--experts", type=click.IntRange(min=1), default=64, show_default=True, help="Experts of a layer.")
@click.option(
    "--pipeline", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages, each a run of ranks."
)
@click.option("--overlap", is_flag=True, help="Two microbatches in flight.")
@click.option("--fault", "faults", multiple=True, metavar="KIND[:KEY=VALUE,...]", help="A fault to put in; repeatable.")
@click.option("--list-faults", is_flag=True, help="List the faults, their keys and defaults, and stop.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same bytes.")
@click.option("--no-hooks", is_flag=True, help="Leave out what only the hooks record: ranges and telemetry.")
@click.option("--force", is_flag=True, help="Replace an earlier simulated run.")
@json_option
def command(
    out: Path | None, *, faults: tuple[str, ...], list_faults: bool, force: bool, as_json: bool, **options: Any
) -> None:
    """Simulate a training run on a cluster and write it as a run directory.

    Traces look as torch writes them on NVIDIA devices; truth.json holds every arrival, wait and transfer, the clocks,
    and what each fault cost, as the step time with it minus the step time without it. Everything shown of such a run
    is marked simulated.
    """
    import json
    import shlex

    from moescope.cli.progress import progress
    from moescope.cli.text import printable

    if list_faults:
        _print_faults()
        return
    if out is None:
        raise click.UsageError("Missing option '--out': where to write the run.")
    config = _config(faults, out, **options)
    check_place(out, SIMULATED, force=force)
    remove_parts(out, SIMULATED)
    from moescope.simulate import simulate

    with progress("Simulating") as show:
        path = simulate(config, out, show)
    if as_json:
        click.echo(json.dumps({"schema": "moescope.simulate/1", "ok": True, "path": str(path)}))
        return
    click.echo(printable(f"Wrote {path}: {config.ranks} simulated ranks, {config.steps} steps, truth in truth.json."))
    click.echo(printable(f"Next: moescope analyze {shlex.quote(str(path))}"))


def _config(faults: tuple[str, ...], out: Path, *, layers: int, experts: int, no_hooks: bool, **fields: Any) -> Any:
    """Return the :class:`SimConfig` that the options describe."""
    from moescope.simulate import Model, SimConfig, parse_fault

    model = Model(num_layers=layers, num_experts=experts)
    parsed = tuple(parse_fault(text) for text in faults)
    return SimConfig(faults=parsed, model=model, hooks=not no_hooks, name=out.resolve().name, **fields)


def _print_faults() -> None:
    """Print every fault with its keys, defaults and meaning."""
    from moescope.simulate.faults import KINDS

    for kind in KINDS.values():
        cause = f"cause: {kind.cause}" if kind.cause else "costs no time"
        meaning = " ".join((kind.__doc__ or "").replace("``", "").split())
        everyone = " rank=-1: all ranks." if kind.for_all else ""
        click.echo(f"{kind().describe()}    ({cause})\n    {meaning}{everyone}")
