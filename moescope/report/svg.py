"""SVG elements with everything escaped; colours come from the page's style sheet, so themes and print switch them.

Charts are 960 units wide and scale with the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

WIDTH = 960


def num(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element with escaped children and attributes; ``class_`` is written ``class`` and ``_`` in names ``-``."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), num(value) if isinstance(value, float) else value)
        for key, value in attributes.items()
        if value is not None
    )
    body = Markup("").join(escape(child) for child in children)
    return Markup("<{}{}>{}</{}>").format(Markup(name), written, body, Markup(name))


def text(x: float, y: float, content: str, *, anchor: str | None = None, class_: str = "t") -> Markup:
    """A line of text on the baseline ``y``."""
    return tag("text", content, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def rect(x: float, y: float, width: float, height: float, *, class_: str, title: str = "") -> Markup:
    """A rectangle, with a tooltip where ``title`` is given."""
    children = (tag("title", title),) if title else ()
    return tag("rect", *children, x=float(x), y=float(y), width=float(width), height=float(height), class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def chart(height: float, label: str, parts: Iterable[Markup], width: float = WIDTH) -> Markup:
    """The whole picture, named ``label`` for readers that don't see it."""
    return tag("svg", *parts, viewBox=f"0 0 {num(width)} {num(height)}", role="img", aria_label=label, class_="chart")


def ticks(top: float, most: int = 6) -> list[float]:
    """Round values from 0 to at most ``top``: steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    raw = top / most
    power = 10.0 ** int(f"{raw:e}".partition("e")[2])
    step = next(step for step in (1, 2, 5, 10) if step * power >= raw * 0.999) * power
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def nice_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is at least ``least``."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power >= least:
                return step * power
        power *= 10


def bare_zeros(content: str) -> str:
    """A tick's text without trailing zeros: ``10 ms`` for ``10.0 ms``."""
    return re.sub(r"\.0+(?![0-9])", "", content)


def shorten(content: str, most: int) -> str:
    """``content`` with its middle replaced where it is longer than ``most`` characters."""
    if len(content) <= most:
        return content
    head = (most - 1) // 2
    return content[:head] + "…" + content[len(content) - (most - 1 - head) :]
