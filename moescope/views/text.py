"""How numbers become text: one set of rules for the command line, the report and the dashboard.

Durations and sizes get the unit that fits and three significant digits; what is missing is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable

NONE = "–"
_DURATIONS = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZES = ((1 << 50, "PiB"), (1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_BREAKS = "\t\n\r"
_UNSAFE = [*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
"""Control characters, ends of lines and paragraphs, and what turns the direction of writing."""
_ESCAPES = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _UNSAFE}
_ESCAPES_IN_LINES = {code: escape for code, escape in _ESCAPES.items() if chr(code) not in _BREAKS}


def printable(text: str, *, keep_breaks: bool = False) -> str:
    """Return ``text`` as one line whose control characters and lone surrogates are visible escapes.

    Names come from traces that others recorded. Printed raw, one could drive a terminal, add lines that look like ours
    or turn the direction of what follows. ``keep_breaks`` leaves tabs and ends of lines as they are.
    """
    escaped = text.translate(_ESCAPES_IN_LINES if keep_breaks else _ESCAPES)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def significant(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits and no exponent: 12.3, 1,240, 0.0123."""
    if value == 0:
        return "0"
    exponent = int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that fits: ``1.24 s``, ``45.6 ms``, ``12.3 µs``, ``345 ns``."""
    if ns is None:
        return NONE
    for size, unit in _DURATIONS:
        if abs(ns) >= size * 0.9995:
            return f"{significant(ns / size)} {unit}"
    return "0" if ns == 0 else f"{ns:.0f} ns"


def milliseconds(ns: float | None) -> str:
    """Nanoseconds as milliseconds, for columns that compare: ``45.63``, ``0.012``."""
    if ns is None:
        return NONE
    value = ns / 1e6
    return f"{value:,.2f}" if abs(value) >= 0.1 or value == 0 else significant(value, 2)


def size(num_bytes: float | None) -> str:
    """Bytes in binary units: ``46.7 GiB``, ``512 B``."""
    if num_bytes is None:
        return NONE
    for factor, unit in _SIZES:
        if abs(num_bytes) >= factor:
            return f"{significant(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def basis(recorded: str) -> str:
    """Where the numbers come from, in words: ``measured``, ``simulated``, or that the folder does not say."""
    return "no run.json says how it was recorded" if recorded == "unknown" else recorded


def percent(share: float | None) -> str:
    """A share as percent: ``18.3 %``, ``0.41 %``; what is there but tiny is not shown as nothing."""
    if share is None:
        return NONE
    value = share * 100
    if value == 0:
        return "0 %"
    if abs(value) < 0.01:
        return "<0.01 %"
    return f"{value:.2f} %" if abs(value) < 1 else f"{value:.1f} %"


def count(value: float | None) -> str:
    """A count or mean count: ``412,345``; a fraction keeps one digit below 1,000."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.1f}"


def ratio(value: float | None) -> str:
    """A dimensionless figure such as MaxVio: ``0.87``."""
    return NONE if value is None else f"{value:,.2f}"


def figure(value: float | None) -> str:
    """A figure of any size: ``123,456``, ``0.0123``."""
    return NONE if value is None else significant(value, 4)


def factor(value: float | None) -> str:
    """A multiple of the mean: ``1.9×``."""
    return NONE if value is None else f"{value:,.2f}×"


def plain(value: object) -> str:
    """Text, or a number that names something (a rank, a layer)."""
    return NONE if value is None or value == "" else str(value)


def plural(number: int, noun: str) -> str:
    """``1 rank``, ``4 ranks``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ranges(numbers: tuple[int, ...] | list[int]) -> str:
    """Sorted numbers with runs folded: ``0–3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs) or NONE


FORMATS: dict[str, Callable[..., str]] = {
    "text": plain,
    "id": plain,
    "duration": duration,
    "ms": milliseconds,
    "bytes": size,
    "percent": percent,
    "count": count,
    "ratio": ratio,
    "figure": figure,
    "factor": factor,
}
"""Kinds of column and how their values are written."""
