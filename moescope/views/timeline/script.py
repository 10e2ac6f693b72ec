"""The timeline's script and style: the same for the dashboard, which serves them, and the report, which embeds them."""

from __future__ import annotations

from importlib import resources

_SCRIPTS = ("math.js", "draw.js", "panel.js", "view.js", "input.js")


def script(*more: str) -> str:
    """The timeline's script, followed by the files ``more``, such as where its data come from."""
    return "".join(_asset(name) for name in (*_SCRIPTS, *more))


def style() -> str:
    """The timeline's style sheet; the colours are those of :func:`moescope.views.theme.theme_css`."""
    return _asset("timeline.css")


def _asset(name: str) -> str:
    return resources.files("moescope.views.timeline").joinpath("assets", name).read_text("utf-8")
