"""``moescope train``: train the bundled model on local ranks, or as one of torchrun's."""

from __future__ import annotations

import glob
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moescope.cli.options import examples
from moescope.cli.text import printable
from moescope.errors import MoescopeError
from moescope.outputs import TRAINED, check_place, remove_parts

if TYPE_CHECKING:
    from moescope.trainer.config import Config


@click.command(
    short_help="Train the bundled model, leaving telemetry and traces.",
    epilog=examples(
        "train --profile --name first",
        "train --preset small --steps 100 --set moe.top_k=4 --name sparse",
        "train --name first --resume",
    ),
)
@click.option("--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="Local ranks to start.")
@click.option("--preset", help="tiny (the default: seconds on two cores), small or gpu.")
@click.option("--config", "toml", type=click.Path(path_type=Path), help="TOML file that overrides the preset.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override one field, e.g. moe.top_k=4.")
@click.option("--data", multiple=True, metavar="GLOB", help="Text files; each GLOB is a domain of its own.")
@click.option("--steps", type=int, help="Optimizer steps.")
@click.option("--ep", type=int, help="Ranks that share one set of experts (default: all).")
@click.option("--seed", type=int, help="Seed of weights and data order.")
@click.option("--profile", is_flag=True, help="Record a trace of some steps on every rank.")
@click.option("--router-bias", type=float, help="Control: bias the choice of experts towards one rank's.")
@click.option("--router-bias-rank", type=int, help="Control: that rank.")
@click.option("--name", help="Name of the run: its directory is runs/NAME.")
@click.option("--out", type=click.Path(path_type=Path), help="The run directory itself.")
@click.option("--resume", is_flag=True, help="Continue the run that is there from its latest checkpoint.")
@click.option("--force", is_flag=True, help="Replace an earlier run of this command.")
def command(
    *, ranks: int, name: str | None, out: Path | None, resume: bool, force: bool, toml: Path | None, **options: Any
) -> None:
    """Train the bundled mixture-of-experts model, leaving telemetry and traces in a run directory.

    Under torchrun it joins the ranks it is given, and --ranks does not apply.
    """
    main_rank = os.environ.get("RANK", "0") == "0"
    directory = _run_directory(name, out, resume=resume)
    if resume and toml is None:
        toml = directory / "config.toml"
    config = _effective_config(toml=toml, **options)
    if "WORLD_SIZE" not in os.environ:
        _refuse_misfits(config, ranks)
    if main_rank and not resume:
        check_place(directory, TRAINED, force=force, reads=_reads(config, toml))
        remove_parts(directory, TRAINED)
    if main_rank:
        _show_config(config)
    _launch(config, directory, ranks, resume=resume)
    if main_rank:
        _after(config, directory)


def _run_directory(name: str | None, out: Path | None, *, resume: bool) -> Path:
    if out is not None or name is not None:
        return out or Path("runs") / str(name)
    if resume:
        raise MoescopeError("--resume needs --name or --out", hint="name the run to continue")
    started = os.environ.get("TORCHELASTIC_RUN_ID", time.strftime("%Y%m%d-%H%M%S"))
    return Path("runs") / f"train-{started}"


def _effective_config(
    *,
    preset: str | None,
    toml: Path | None,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    profile: bool,
    steps: int | None,
    ep: int | None,
    seed: int | None,
    router_bias: float | None,
    router_bias_rank: int | None,
) -> Config:
    from moescope.trainer.presets import load_config

    given: dict[str, dict[str, Any]] = {
        "train": {"steps": steps, "seed": seed},
        "parallel": {"ep_size": ep},
        "data": {"files": data or None},
        "profile": {"enabled": profile or None},
        "control": {"router_bias": router_bias, "router_bias_rank": router_bias_rank},
    }
    options = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in given.items()}
    return load_config(preset, toml, settings, **options)


def _refuse_misfits(config: Config, ranks: int) -> None:
    """Raise what the ranks would raise later, before one of them starts and before an earlier run is replaced."""
    from moescope.trainer.placement import placements_of

    config.data.paths()
    config.check_world(ranks)
    placements_of(config, config.ep_size(ranks))


def _reads(config: Config, toml: Path | None) -> Iterator[Path | None]:
    """What the training reads beside the modules."""
    yield toml
    yield from (Path(name) for name in (config.parallel.placement_file, config.parallel.placement_from) if name)
    for pattern in config.data.files:
        yield from (Path(name) for name in glob.iglob(pattern, recursive=True))


def _show_config(config: Config) -> None:
    from moescope.trainer.presets import to_toml

    click.echo(to_toml(config), err=True)
    for control in config.control.active():
        click.echo(printable(f"control, not a plain run: {control}"), err=True)


def _launch(config: Config, directory: Path, ranks: int, *, resume: bool) -> None:
    try:
        from moescope.trainer.launch import launch
        from moescope.trainer.loop import Job
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MoescopeError(
            "training needs torch, which is not installed", hint="pip install 'moescope[train]'"
        ) from error
    launch(Job(config, directory, ("moescope", *sys.argv[1:]), resume), ranks)


def _after(config: Config, directory: Path) -> None:
    """What the user sees of a finished run: the place for whatever should follow a profiled run."""
    click.echo(printable(f"Wrote {directory}"))
    if config.profile.enabled:
        click.echo(printable(f"Next: moescope analyze {directory}"))
    else:
        click.echo("Next: train again with --profile, to see where the step goes")
