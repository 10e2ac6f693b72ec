"""The report as a string: complete, safe, the same every time."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import re
from html.parser import HTMLParser

import pytest
from analysis_fixture import HOSTILE, HOSTILE_QUOTES, bare, example

from moescope.findings.model import Finding
from moescope.report import redact, render
from moescope.report.page import embed
from moescope.report.sections import sections

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Collects elements, ids, in-page links and attributes; fails on tags that don't nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.content: dict[str, list[str]] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if str(values.get("href", "")).startswith("#"):
            self.links.append(str(values["href"])[1:])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.content.setdefault(self.open[-1] if self.open else "", []).append(data)


def test_same_analysis_gives_same_bytes() -> None:
    assert render(example()).text == render(example()).text


@pytest.mark.parametrize("analysis", [example(), example(hostile=False), bare(), example(1, 1, 1)])
def test_page_nests_and_every_link_has_its_target(analysis) -> None:
    page = Page(render(analysis).text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.links) <= set(page.ids)


def test_hostile_names_stay_text() -> None:
    text = render(example()).text
    page = Page(text)
    assert page.tags.count("script") == 4 - 1  # theme, data, behaviour
    assert "img" not in page.tags
    assert HOSTILE not in text
    assert html.escape(HOSTILE_QUOTES, quote=False)[:30] in text.replace("&#39;", "'").replace("&#34;", '"')
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_no_inline_style_and_nothing_from_the_network() -> None:
    page = Page(render(example(hostile=False)).text)
    assert "style" not in [name for name, _ in page.attributes]
    outside = [v for name, v in page.attributes if name in ("src", "href") and v and not v.startswith(("#", "data:,"))]
    assert outside == []


def test_policy_allows_exactly_the_scripts_and_style_of_the_page() -> None:
    text = render(example()).text
    page = Page(text)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert policy.startswith("default-src 'none'")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    for content in [*scripts, style]:
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == len(scripts) + 1
    assert "unsafe" not in policy
    assert page.content["style"]


def test_embedded_json_cannot_close_its_element() -> None:
    value = {"name": "</script><!-- & \u2028"}
    text = embed(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


def test_verdict_shows_five_findings_and_folds_the_rest() -> None:
    analysis = example(hostile=False)
    many = tuple(dataclasses.replace(analysis.findings[0], claim=f"Claim number {i}.", rank=i) for i in range(7))
    text = render(dataclasses.replace(analysis, findings=many)).text
    folded = text.index("2 more</summary>")
    assert text.index("Claim number 4.") < folded < text.index("Claim number 5.")


def test_finding_without_cost_shows_none() -> None:
    analysis = example(hostile=False)
    good = Finding("balanced", "good", None, None, 0, 0.0, "Ranks are balanced.", "", "high", "measured", {})
    text = render(dataclasses.replace(analysis, findings=(good,))).text
    card = text[text.index('class="finding good"') : text.index("</article>")]
    assert "of the step" not in card
    assert "no cost of its own" in card


def test_controls_and_simulation_are_announced() -> None:
    text = render(example(hostile=False)).text
    assert "Diagnostic controls were on" in text
    assert "router-bias: +2.0 on the experts of rank 2" in text
    assert "written by a simulator" in text
    plain = render(bare()).text
    assert "Diagnostic controls" not in plain
    assert "written by a simulator" not in plain


def test_every_empty_section_says_what_is_missing_and_how_to_record_it() -> None:
    text = render(bare()).text
    for hint in ("profile_memory=True", "observe(model, out=RUN)", "record_shapes=True", "obs.step()"):
        assert hint in text
    empty = [s for s in sections(bare()) if s.panel.empty]
    assert {"edges", "ranks", "experts", "memory", "steps", "clock"} <= {s.panel.key for s in empty}
    assert all(s.panel.empty.missing for s in empty)


def test_every_chart_has_a_table_and_a_reading() -> None:
    for section in sections(example(hostile=False)):
        if section.pictures:
            assert section.tables, section.panel.key
            assert section.panel.reading.endswith("."), section.panel.key


def test_large_run_is_cut_to_the_budget_and_says_so() -> None:
    analysis = example(64, 2, 24, hostile=False)
    whole = render(analysis).text
    budget = len(whole.encode()) * 2 // 3
    cut = render(analysis, budget_bytes=budget).text
    assert len(cut.encode()) <= budget
    assert "Cut to keep this file small" in cut
    assert "Cut to keep this file small" not in render(example(hostile=False)).text


def test_what_cannot_be_cut_further_is_still_written() -> None:
    cut = render(example(64, 2, 24, hostile=False), budget_bytes=1000).text
    assert "the numbers of the heat map" in cut
    assert "Rank 2 holds the hot experts" in cut


def test_redaction_removes_hosts_and_folders_everywhere() -> None:
    analysis = example(hostile=False)
    text = render(redact(analysis)).text
    for secret in ("node-a", "node-b", "alice", "/home"):
        assert secret not in text
    assert "host-1" in text
    assert "host-2" in text
    assert "traces/rank0.json.gz" in text
    assert "/home/alice/runs/skewed" in render(analysis).text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/alice/data/a.txt", "…/a.txt"),
        ("--data=/srv/x/y.bin and ~/runs/r1", "--data=…/y.bin and …/r1"),
        ("C:\\Users\\bob\\t.json", "…/t.json"),
        ("../up/there/f", "…/f"),
        ("traces/rank0.json.gz", "traces/rank0.json.gz"),
        ("12.5 MB/s at 3 tokens/step", "12.5 MB/s at 3 tokens/step"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("gpu17.corp.example wrote gpu17_4242.json", "host-1 wrote host-1_4242.json"),
        ("gpu170 is another", "gpu170 is another"),
    ],
)
def test_redacted_texts(text: str, expected: str) -> None:
    analysis = bare()
    source = dataclasses.replace(analysis.sources[0], host="gpu17.corp.example")
    rank = dataclasses.replace(analysis.ranks[0], host="gpu17.corp.example")
    changed = dataclasses.replace(analysis, name=text, sources=(source,), ranks=(rank,))
    assert redact(changed).name == expected
