"""``moescope serve DIR [DIR...]``: the dashboard on this machine, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from moescope.cli.options import Reading, baseline_option, examples, reading_options
from moescope.errors import ExitCode, InputUnreadableError


@click.command(
    short_help="Show the evidence and the timeline of all ranks in a browser.",
    epilog=examples(
        "serve runs/first",
        "serve runs/before runs/after --port 0 --open",
        "serve runs/first --host 0.0.0.0 --token LONG-RANDOM-WORD",
    ),
)
@click.argument("paths", metavar="DIR...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Another address needs --token.")
@click.option("--token", help="A word that every viewer must bring; printed with the address.")
@click.option("--follow-links", is_flag=True, help="Read what links that lead out of the folders point at.")
@click.option("--open/--no-open", "open_", default=False, help="Open the browser. [default: no]")
@reading_options
@baseline_option
def command(
    paths: tuple[Path, ...],
    *,
    port: int,
    host: str,
    token: str | None,
    follow_links: bool,
    open_: bool,
    **reading: Unpack[Reading],
) -> int:
    """Serve the dashboard for one or more folders on 127.0.0.1 until Ctrl-C.

    A folder is analysed in the background when its page is first opened; one that was analysed before opens at once.
    Only the folders named here can be read, and nothing is fetched from the network.
    """
    for path in paths:
        if not path.exists():
            raise InputUnreadableError(f"{path} does not exist.", hint="Name a run or a folder of traces.")

    from moescope_app.serving import serve

    from moescope.cli.text import printable
    from moescope.views import build
    from moescope.views.model import Analysis
    from moescope.views.timeline import Timeline

    def analyse(path: Path, show: build.Progress) -> Analysis:
        return build.analyze(path, **reading, progress=show)

    def open_timeline(path: Path, analysis: Analysis) -> Timeline:
        return build.open_timeline(path, analysis, **reading)

    def announce(address: str) -> None:
        click.echo(printable(f"Serving {', '.join(map(str, paths))} on {address}  (Ctrl-C ends)"))

    serve(
        paths,
        analyse,
        open_timeline,
        host=host,
        port=port,
        token=token,
        open_browser=open_,
        follow_links=follow_links,
        announce=announce,
    )
    return ExitCode.DONE
