"""The report in a browser, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from analysis_fixture import bare, example
from browser_support import Watched, chromium, fresh_page, needs_chromium
from playwright.sync_api import Browser
from trace_fixture import write_trace

from moescope.report import write_report
from moescope.views.build import analyze, open_timeline

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize("dark", [False, True])
def test_opens_with_one_request_and_no_complaint(browser: Browser, tmp_path: Path, dark: bool) -> None:
    for name, analysis in (("hostile", example()), ("bare", bare())):
        write_report(analysis, tmp_path / f"{name}.html", hide_names=False)
        with fresh_page(browser, dark=dark) as watched:
            watched.page.goto((tmp_path / f"{name}.html").as_uri())
            assert watched.page.locator("h2").first.inner_text() == "Verdict"
            assert watched.page.evaluate("document.documentElement.scrollWidth") == 1280
            background = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(23, 27, 33)" if dark else "rgb(255, 255, 255)")
            assert len(watched.requests) == 1
            assert watched.complaints == []


def test_reader_follows_evidence_sorts_a_table_and_switches_theme(browser: Browser, tmp_path: Path) -> None:
    write_report(example(hostile=False), tmp_path / "r.html")
    with fresh_page(browser) as watched:
        page = watched.page
        page.goto((tmp_path / "r.html").as_uri())
        page.locator(".finding a").first.click()
        assert page.url.endswith("#ranks")
        page.locator("#edges summary").click()
        first = page.locator("#edges-edges tbody tr").first
        page.locator("#edges-edges th").nth(0).click()
        assert first.locator("td").nth(0).inner_text() == "3"
        page.locator("#edges-edges th").nth(0).click()
        assert first.locator("td").nth(0).inner_text() == "0"
        page.locator("#ranks .hit").scroll_into_view_if_needed()
        box = page.locator("#ranks .hit").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.9)
        assert page.locator("#tip").inner_text() == "layer 3, rank 2: 1.99×"
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert watched.complaints == []


def test_tables_filter_and_save_and_charts_are_saved_as_pictures(browser: Browser, tmp_path: Path) -> None:
    write_report(example(), tmp_path / "r.html", hide_names=False)
    with fresh_page(browser) as watched:
        page = watched.page
        page.goto((tmp_path / "r.html").as_uri())
        page.locator("#parts summary").click()
        page.locator("#parts .filter").fill("no such word")
        assert page.locator("#parts tbody tr:visible").count() == 0
        page.locator("#parts .filter").fill("")
        assert page.locator("#parts tbody tr:visible").count() == 4
        with page.expect_download() as table:
            page.locator("#parts details .action", has_text="CSV").click()
        assert table.value.suggested_filename == "parts-parts.csv"
        lines = Path(table.value.path()).read_text().splitlines()
        assert lines[0].startswith("rank,host,step")
        assert not [cell for line in lines for cell in line.split(",") if cell.lstrip('" ').startswith("=")]
        for kind, head in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
            with page.expect_download() as picture:
                page.locator("#parts figure .action", has_text=kind).click()
            assert Path(picture.value.path()).read_bytes().startswith(head)
        assert len([url for url in watched.requests if not url.startswith("data:")]) == 1
        assert watched.complaints == []


def test_prints_light_without_controls(browser: Browser, tmp_path: Path) -> None:
    write_report(example(hostile=False), tmp_path / "r.html")
    with fresh_page(browser, dark=True) as watched:
        watched.page.goto((tmp_path / "r.html").as_uri())
        watched.page.emulate_media(media="print")
        assert watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not watched.page.locator("#theme").is_visible()
        assert watched.page.locator("#parts svg").is_visible()


def until(watched: Watched, script: str) -> None:
    for _ in range(1200):
        if watched.page.evaluate(script):
            return
        watched.page.wait_for_timeout(50)
    raise AssertionError(f"never held: {script}")


TIMELINE = "document.getElementById('timeline-view').moescope"


def test_timeline_works_from_disk_with_one_request(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(2):
        write_trace(folder, rank)
    write_report(
        analyze(folder), tmp_path / "r.html",
        open_timeline=lambda shown, rename: open_timeline(folder, shown, rename=rename),
    )  # fmt: skip
    with fresh_page(browser) as watched:
        page = watched.page
        page.goto((tmp_path / "r.html").as_uri())
        until(watched, f"{TIMELINE}?.stats.firstTileMs > 0")
        whole = page.evaluate(f"{TIMELINE}.view")
        page.keyboard.press("w")
        assert page.evaluate(f"{TIMELINE}.view") == whole  # keys are the page's until it has the focus
        page.locator(".timeline-canvas").click(position={"x": 400, "y": 90})
        page.keyboard.press("w")
        assert page.evaluate(f"{TIMELINE}.view.t1 - {TIMELINE}.view.t0") < whole["t1"] - whole["t0"]
        page.keyboard.press("Enter")
        until(watched, f"{TIMELINE}.tile.rows.size === 5")
        page.keyboard.press("/")
        page.keyboard.type("gemm")
        page.keyboard.press("Enter")
        until(watched, f"{TIMELINE}.hits.length === 4")
        page.evaluate(f"{TIMELINE}.selectRange(0, 100000)")
        page.locator("table.range").wait_for()
        assert page.locator("table.range tbody tr").first.inner_text().startswith("all ranks")
        assert len(watched.requests) == 1
        assert watched.complaints == []
