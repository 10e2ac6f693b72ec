"""The report as one HTML page that needs no network: same analysis, same bytes."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

import moescope
from moescope.findings.model import Finding
from moescope.report.sections import Limits, Picture, cut, sections
from moescope.views import palette
from moescope.views.links import cost, numbers
from moescope.views.model import Analysis
from moescope.views.panels_step import headline
from moescope.views.theme import theme_css

DEFAULT_BUDGET_BYTES = 5_000_000
MOST_FINDINGS = 5
_STEPS = (Limits(1000, 300), Limits(300, 130), Limits(100, 66), Limits(30, 34), Limits(10, 12, values=False))
_ANCHORS = {
    "load-imbalance": "ranks",
    "router-collapse": "experts",
    "dropped-tokens": "ranks",
    "slow-rank": "edges",
    "slow-network": "waits",
    "volume-imbalance": "waits",
    "exposed-communication": "waits",
    "small-gemm": "losses",
    "host-bound": "host",
    "recompute-cost": "parts",
    "memory-peak": "memory",
    "allocator-stall": "memory",
    "clock-uncertain": "clock",
    "incomplete-input": "missing",
    "balanced": "ranks",
}
_PAGES = {"load": "ranks", "communication": "waits", "memory": "memory", "steps": "steps", "run": "sources",
          "timeline": "collectives", "verdict": "parts", "gemm": "rates", "host": "host"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A finding as the verdict shows it."""

    finding: Finding
    cost: str
    share: str
    anchor: str
    evidence: tuple[tuple[str, str], ...]


def render(analysis: Analysis, *, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> str:
    """The page; tables are cut, and the page says which, until it fits ``budget_bytes`` or nothing is left to cut."""
    whole = sections(analysis)
    values = {part.panel.key: _values(part.pictures) for part in whole if any(p.matrix for p in part.pictures)}
    template, fixed, page = _template(), _fixed(analysis), ""
    for limits in _STEPS:
        parts = [cut(section, limits) for section in whole]
        data = embed(values if limits.values else {})
        page = template.render(fixed, sections=parts, cuts=[text for part in parts for text in part.cuts], data=data)
        if len(page.encode()) <= budget_bytes:
            break
    return page


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("moescope.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _fixed(analysis: Analysis) -> dict[str, object]:
    """What the template needs however much is cut."""
    style = Markup(theme_css() + _asset("report.css"))
    head, body = Markup(_asset("theme.js")), Markup(_asset("report.js"))
    return {
        "analysis": analysis,
        "version": moescope.__version__,
        "style": style,
        "head_script": head,
        "body_script": body,
        "csp": _policy(style, [head, body]),
        "facts": headline(analysis),
        "lines": [_line(finding) for finding in analysis.findings],
        "most": MOST_FINDINGS,
        "hatches": [group for group in palette.GROUPS if group.hatched],
    }


def _asset(name: str) -> str:
    return resources.files("moescope.report").joinpath("assets", name).read_text("utf-8")


def _policy(style: str, scripts: list[Markup]) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    rules = ("default-src 'none'", f"style-src {_hash(style)}", f"script-src {allowed}", "img-src data:")
    return "; ".join((*rules, "base-uri 'none'", "form-action 'none'"))


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _line(finding: Finding) -> Line:
    page = finding.evidence.get("page")
    anchor = _ANCHORS.get(finding.code) or _PAGES.get(str(page), "parts")
    known = cost(finding)
    return Line(finding, *(known or ("", "")), anchor, tuple(numbers(finding)))


def _values(pictures: tuple[Picture, ...]) -> dict[str, object] | None:
    for picture in pictures:
        if picture.matrix:
            matrix = picture.matrix
            values = [[None if v is None else _short(v) for v in row] for row in matrix.values]
            return {"row": matrix.row_name, "column": matrix.column_name, "rows": matrix.rows,
                    "columns": matrix.columns, "kind": matrix.kind, "values": values}  # fmt: skip
    return None


def _short(value: float) -> float | int:
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded


def embed(value: object) -> Markup:
    """JSON that can stand inside a script element: no ``<``, ``>``, ``&`` or line separators."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
