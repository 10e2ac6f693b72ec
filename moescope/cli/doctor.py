"""``moescope doctor DIR``: what a folder holds, what it lacks, and how to record that."""

from __future__ import annotations

import json
from pathlib import Path

import click

from moescope.cli.options import HostGroups, directory_argument, examples, hosts_option, json_option, source_options
from moescope.errors import ExitCode


@click.command(
    short_help="Say what a folder holds and lacks, and how to record the rest.",
    epilog=examples(
        "doctor runs/first", "doctor traces --hosts 0-7,8-15", 'doctor traces --rank-regex "node-(\\d+)" --json'
    ),
)
@directory_argument
@json_option
@hosts_option
@source_options
def command(path: Path, *, as_json: bool, hosts: HostGroups | None, rank_regex: str | None, workers: int | None) -> int:
    """Say what a folder of traces holds: ranks, hosts, groups, steps, recordings and damage.

    Then, for each question moescope can answer, whether this folder suffices, and how to record what it lacks.
    """
    from moescope.cli.inventory import print_inventory
    from moescope.cli.progress import progress
    from moescope.views.inventory import take_inventory
    from moescope.views.json import inventory_to_json
    from moescope.views.questions import questions

    with progress("Reading") as show:
        inventory = take_inventory(path, hosts=hosts, rank_regex=rank_regex, workers=workers, progress=show)
    asked = questions(inventory)
    if as_json:
        click.echo(json.dumps(inventory_to_json(inventory, asked)))
    else:
        print_inventory(inventory, asked)
    return ExitCode.DONE
