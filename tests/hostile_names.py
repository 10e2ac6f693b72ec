"""A run whose every name carries a payload: markup, script, quotes, templates and what drives a terminal."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from analysis_fixture import example

from moescope.views.model import Analysis

MARK = "moescopepayload"
MARKUP = f"</script></title></style><script>{MARK}()</script><img src=x onerror={MARK}()><a href=javascript:{MARK}()>"
BREAKING = f"\"'>--> ${{{{{MARK}}}}} {{{{ {MARK} }}}} `{MARK}` \\u003cscript\\u003e"
TERMINAL = "\x1b]0;owned\x07\x1b[2J\r\n\nVerdict\n1. balanced  good\u202eevil\u2066\u2028\x9b31m\x00"
PAYLOAD = f"{MARKUP}{BREAKING}{TERMINAL}"
WORDS = {"kind", "code", "cause", "severity", "confidence", "basis", "phase", "part", "parts_ns", "group", "source"}
"""Fields whose values are among the analysis's own."""


def poisoned(value: Any, field: str = "") -> Any:
    """``value`` with the payload after every name in it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: poisoned(getattr(value, f.name), f.name) for f in dataclasses.fields(value)})
    if isinstance(value, tuple):
        return tuple(poisoned(item, field) for item in value)
    if isinstance(value, dict) and field not in WORDS:
        return {key: poisoned(item, field) for key, item in value.items()}
    return f"{value}{PAYLOAD}" if isinstance(value, str) and field not in WORDS else value


def poisoned_run() -> Analysis:
    """The example with the payload after every name."""
    plain = example(hostile=False)
    names = {"name", "path", "controls", "sources", "ranks", "missing", "clock", "provenance", "findings", "memory"}
    return replace(plain, **{name: poisoned(getattr(plain, name), name) for name in names})
