"""Heat maps as one path per colour level, so that 60 layers by 1,024 ranks stay small and follow the theme."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from moescope.report.svg import WIDTH, chart, line, nice_step, num, rect, tag, text
from moescope.views.panels import Matrix
from moescope.views.text import FORMATS, ratio

LEVELS = 33
"""Colour classes ``v0`` to ``v32``; 16 is the middle of a diverging scale."""
LEFT = 60

Levels = Sequence[Sequence[int | None]]
Observed = Sequence[tuple[float | None, float | None]]
"""Per row: what was observed and the random floor."""


def balance_level(value: float | None, limit: int) -> int | None:
    """Colour level of a multiple of the mean, on a log scale with 1 in the middle."""
    if value is None:
        return None
    position = max(-limit, min(limit, math.log2(value) if value > 0 else -limit))
    return round((position / limit + 1) / 2 * (LEVELS - 1))


def amount_level(value: float | None, top: float) -> int | None:
    """Colour level of an amount from 0 to ``top``, from the middle to the hot end."""
    if value is None:
        return None
    middle = (LEVELS - 1) // 2
    return middle + round(min(1.0, value / top if top else 0.0) * middle)


def cells(levels: Levels, x0: float, width: float, height: float, gap: float) -> list[Markup]:
    """One path per level; neighbours of the same level in a row become one rectangle when there is no gap."""
    paths: dict[int, list[str]] = defaultdict(list)
    for r, row in enumerate(levels):
        c = 0
        while c < len(row):
            level, run = row[c], 1
            while gap == 0 and c + run < len(row) and row[c + run] == level:
                run += 1
            if level is not None:
                w, h = run * width - gap, height - gap
                paths[level].append(f"M{num(x0 + c * width)} {num(r * height)}h{num(w)}v{num(h)}h{num(-w)}z")
            c += run
    return [tag("path", d="".join(paths[level]), class_=f"v{level}") for level in sorted(paths)]


def _axis(matrix: Matrix, x0: float, width: float, height: float) -> list[Markup]:
    every_row = nice_step(14 / height)
    every_column = nice_step((8 + 7 * max(len(str(c)) for c in matrix.columns)) / width)
    bottom = len(matrix.rows) * height
    parts = [
        text(x0 - 8, (r + 0.5) * height + 4, str(name), anchor="end", class_="t dim")
        for r, name in enumerate(matrix.rows)
        if r % every_row == 0
    ]
    parts += [
        text(x0 + (c + 0.5) * width, bottom + 14, str(name), anchor="middle", class_="t dim")
        for c, name in enumerate(matrix.columns)
        if c % every_column == 0
    ]
    centre = x0 + len(matrix.columns) * width / 2
    parts.append(text(centre, bottom + 32, matrix.column_name, anchor="middle"))
    parts.append(
        tag("text", matrix.row_name, x=14.0, y=bottom / 2, class_="t", text_anchor="middle",
            transform=f"rotate(-90 14 {num(bottom / 2)})")
    )  # fmt: skip
    return parts


def _row_height(num_rows: int) -> float:
    return max(2.0, min(26.0, 520 / max(1, num_rows)))


def _values(matrix: Matrix, levels: Levels, x0: float, width: float, height: float) -> list[Markup]:
    """The numbers inside the cells, where they fit."""
    show = FORMATS[matrix.kind]
    parts = []
    for r, row in enumerate(matrix.values):
        for c, value in enumerate(row):
            level = levels[r][c]
            if value is not None and level is not None:
                ends = abs(level - (LEVELS - 1) // 2) > 11
                x, y = x0 + (c + 0.5) * width, (r + 0.5) * height + 4
                parts.append(text(x, y, show(value), anchor="middle", class_="t cell on" if ends else "t cell"))
    return parts


def heat_map(
    matrix: Matrix,
    levels: Levels,
    label: str,
    beside: Observed = (),
) -> Markup:
    """``matrix`` in colours; ``beside`` adds a bar (observed) and a tick (random floor) per row at the right."""
    side = 250.0 if beside else 20.0
    width = min(64.0, (WIDTH - LEFT - side) / max(1, len(matrix.columns)))
    height = _row_height(len(matrix.rows))
    gap = 1.0 if min(width, height) >= 6 else 0.0
    parts = cells(levels, LEFT, width, height, gap)
    if width >= 52 and height >= 16:
        parts += _values(matrix, levels, LEFT, width, height)
    parts += _axis(matrix, LEFT, width, height)
    right = LEFT + len(matrix.columns) * width
    if beside:
        parts += _beside(beside, right + 34, min(WIDTH - right - 90, 160.0), height)
    area = rect(LEFT, 0, right - LEFT, len(matrix.rows) * height, class_="hit")
    parts.append(area)
    return chart(len(matrix.rows) * height + 40, label, parts)


def _beside(values: Observed, x0: float, width: float, height: float) -> list[Markup]:
    top = max([v for pair in values for v in pair if v is not None], default=1.0) or 1.0
    bottom = len(values) * height
    parts = [line(x0, 0, x0, bottom, "grid")]
    for r, (seen, floor) in enumerate(values):
        y = r * height
        if seen is not None:
            parts.append(
                rect(
                    x0, y + height * 0.2, seen / top * width, height * 0.6, class_="seen", title=f"MaxVio {ratio(seen)}"
                )
            )
            if height >= 12:
                parts.append(text(x0 + max(seen, floor or 0) / top * width + 6, y + height / 2 + 4, ratio(seen)))
        if floor is not None:
            x = x0 + floor / top * width
            parts.append(line(x, y + 1, x, y + height - 2, "floor"))
    parts.append(text(x0, bottom + 14, "MaxVio", class_="t dim"))
    parts.append(text(x0, bottom + 32, "tick: random floor", class_="t dim"))
    return parts


def scale_bar(names: Sequence[str], low: str, high: str, first: int = 0) -> Markup:
    """The colour scale with ``names`` evenly spread below it."""
    count = LEVELS - first
    width = 280 / count
    parts = [text(LEFT + 90, 13, low, anchor="end", class_="t dim")]
    parts += [rect(LEFT + 100 + i * width, 2, width + 0.3, 12, class_=f"v{first + i}") for i in range(count)]
    parts.append(text(LEFT + 390, 13, high, class_="t dim"))
    last = max(1, len(names) - 1)
    parts += [text(LEFT + 100 + 280 * i / last, 28, n, anchor="middle", class_="t dim") for i, n in enumerate(names)]
    return chart(32, f"colour scale, {low} to {high}", parts)
