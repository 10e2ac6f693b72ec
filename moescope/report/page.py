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
from moescope.report.timeline import embed_timeline
from moescope.views import palette
from moescope.views.links import Target, cost, moment, numbers
from moescope.views.model import Analysis
from moescope.views.panels.step import headline
from moescope.views.theme import theme_css
from moescope.views.timeline import Timeline
from moescope.views.timeline.script import script as timeline_script
from moescope.views.timeline.script import style as timeline_style

DEFAULT_BUDGET_BYTES = 5_000_000
MOST_FINDINGS = 5
TABLES_SHARE = 0.5
"""Of the budget, for everything but the timeline's data."""
RESERVE_BYTES = 3_000
"""For the sentences that say what was cut."""
_STEPS = (Limits(1000, 300), Limits(300, 130), Limits(100, 66), Limits(30, 34), Limits(10, 12, values=False))
_ANCHORS = {
    "load-imbalance": "ranks",
    "router-collapse": "experts",
    "dropped-tokens": "ranks",
    "slow-rank": "edges",
    "slow-network": "waits",
    "volume-imbalance": "waits",
    "pipeline-bubbles": "waits",
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
    moment: str
    """Where the timeline shows it: ``start-end`` in ns, empty where nothing does."""


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and what is not in it."""

    text: str
    cuts: tuple[str, ...]


def render(analysis: Analysis, *, budget_bytes: int = DEFAULT_BUDGET_BYTES, timeline: Timeline | None = None) -> Page:
    """The page within ``budget_bytes``: tables are cut until they leave room, the timeline gets what remains.

    The page says what was cut. It is larger only where nothing is left to cut.
    """
    whole = sections(analysis)
    values = {part.panel.key: _values(part.pictures) for part in whole if any(p.matrix for p in part.pictures)}
    template, fixed, text = _template(), _fixed(analysis, timeline is not None), ""
    room = int(budget_bytes * TABLES_SHARE) if timeline is not None else budget_bytes
    for limits in _STEPS:
        parts = [cut(section, limits) for section in whole]
        data = embed(values if limits.values else {})
        cuts = [part_cut for part in parts for part_cut in part.cuts]
        shown = {"sections": parts, "cuts": cuts, "data": data}
        text = template.render(fixed, **shown, timeline=None, timeline_cuts=[])
        if len(text.encode()) <= room:
            break
    if timeline is None:
        return Page(text, tuple(cuts))
    ranks = [line.finding.rank for line in _lines(analysis) if line.finding.rank is not None]
    embedded = embed_timeline(timeline, budget_bytes - len(text.encode()) - RESERVE_BYTES, ranks)
    left_out = list(embedded.cuts) if embedded else ["the whole timeline is left out."]
    canvas = embed(embedded.parts) if embedded else None
    text = template.render(fixed, **shown, timeline=canvas, timeline_cuts=left_out)
    return Page(text, (*cuts, *(f"Timeline: {one}" for one in left_out)))


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("moescope.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def _fixed(analysis: Analysis, has_timeline: bool) -> dict[str, object]:
    """What the template needs however much is cut."""
    style = Markup(theme_css() + _asset("report.css") + (timeline_style() if has_timeline else ""))
    canvas = timeline_script() + _asset("timeline_embedded.js") if has_timeline else ""
    head, body = Markup(_asset("theme.js")), Markup(_asset("report.js") + canvas)
    return {
        "analysis": analysis,
        "version": moescope.__version__,
        "style": style,
        "head_script": head,
        "body_script": body,
        "csp": _policy(style, [head, body]),
        "facts": headline(analysis),
        "lines": _lines(analysis),
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


def _lines(analysis: Analysis) -> list[Line]:
    return [_line(finding, moment(analysis, finding)) for finding in analysis.findings]


def _line(finding: Finding, when: Target | None) -> Line:
    page = finding.evidence.get("page")
    anchor = _ANCHORS.get(finding.code) or _PAGES.get(str(page), "parts")
    known = cost(finding)
    range_ns = f"{when.start_ns}-{when.end_ns}" if when is not None and when.start_ns is not None else ""
    return Line(finding, *(known or ("", "")), anchor, tuple(numbers(finding)), range_ns)


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
