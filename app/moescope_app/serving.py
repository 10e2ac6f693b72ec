"""Serving the application until it is interrupted."""

from __future__ import annotations

import logging
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from waitress import create_server

from moescope.errors import MoescopeError
from moescope_app.links import inside_only
from moescope_app.runs import Analyze, OpenTimeline, Runs
from moescope_app.server import create_app

NUM_THREADS = 16
CONNECTIONS: dict[str, Any] = {
    "connection_limit": 800,
    "channel_timeout": 20,
    "cleanup_interval": 5,
    "asyncore_use_poll": True,
}
"""Many may be open at once, and one that says nothing for 20 s is closed: hundreds that never ask keep nobody out."""
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    paths: Sequence[Path],
    analyze: Analyze,
    open_timeline: OpenTimeline,
    *,
    host: str = "127.0.0.1",
    port: int = 8050,
    token: str | None = None,
    open_browser: bool = False,
    follow_links: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve ``paths`` on ``host:port`` until Ctrl-C; port 0 takes a free one. ``announce`` is told the address.
    ``follow_links``: read what links in the folders lead to, wherever that is.

    Raises :class:`MoescopeError` for an address beyond this machine without a token, and for one that is taken.
    """
    if host not in LOCAL and not token:
        hint = "Pass --token with a long random word; every viewer then needs it."
        raise MoescopeError(f"Serving on {host} lets others in.", hint=hint, code="token-needed")
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    listener = listen(host, port)
    port = int(listener.getsockname()[1])
    runs = Runs(paths, analyze if follow_links else inside_only(analyze), open_timeline)
    app = create_app(runs, host=host, port=port, token=token)
    server = create_server(app.server, sockets=[listener], threads=NUM_THREADS, ident=None, **CONNECTIONS)
    runs.ask(runs.first())
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    announce(address)
    if open_browser:
        webbrowser.open(address)
    try:
        server.run()
    finally:
        server.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises :class:`MoescopeError` where the address is taken or isn't this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        message = f"Can't listen on {host}:{port}: {error.strerror or error}."
        raise MoescopeError(message, hint="Choose another --port; 0 takes a free one.", code="port-taken") from error
