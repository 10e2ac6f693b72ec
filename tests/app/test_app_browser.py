"""Journeys through the dashboard in a real browser, on recorded-format traces of two ranks."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from analysis_fixture import bare, example
from browser_support import Watched, chromium, fresh_page, needs_chromium
from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.serving import listen
from playwright.sync_api import Browser
from trace_fixture import write_trace
from waitress import create_server

from moescope.errors import InputUnreadableError
from moescope.views.build import analyze, open_timeline

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


def analyse(path: Path, show) -> object:
    if path.name == "slow":
        for done in range(600):
            show(done, 600, f"rank {done}")
            time.sleep(0.05)
    if path.name == "growing":
        whole = example(hostile=False)
        return dataclasses.replace(whole, telemetry=whole.telemetry[: 10 * len(list(path.iterdir()))])
    made = {"skewed": example(hostile=False), "hostile": example(), "bare": bare()}
    return made.get(path.name) or analyze(path, progress=show)


def timeline_of(path: Path, analysis) -> object:
    if not path.exists():
        raise InputUnreadableError(f"{path} is made up")
    return open_timeline(path, analysis)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def address(traces: Path) -> Iterator[str]:
    folder, growing, landing = (traces / name for name in ("two", "growing", "landing"))
    for one in (folder, growing, landing):
        one.mkdir()
    (growing / "part-0").write_text("10 steps")
    write_trace(landing, 0)
    for rank in range(2):
        write_trace(folder, rank)
    paths = [Path("/x/skewed"), Path("/x/hostile"), Path("/x/bare"), Path("/x/slow"), folder, growing, landing]
    runs = Runs(paths, analyse, timeline_of)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = create_server(create_app(runs, port=port, live_ms=300).server, sockets=[listener], threads=4)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.close()


def visit(watched: Watched, address: str, path: str, wait_for: str) -> None:
    watched.page.goto(address + path)
    watched.page.locator(wait_for).first.wait_for(timeout=60_000)


def until(watched: Watched, script: str) -> None:
    """Wait for ``script`` to hold; the page's policy forbids Playwright's own wait, an eval in the page."""
    for _ in range(1200):
        if watched.page.evaluate(script):
            return
        watched.page.wait_for_timeout(50)
    raise AssertionError(f"never held: {script}")


def fine(watched: Watched, address: str) -> None:
    """No complaint, nothing asked of anyone else, nothing wider than the window."""
    assert watched.complaints == []
    assert [url for url in watched.requests if not url.startswith((address, "data:", "blob:"))] == []
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize(("run", "dark"), [("skewed", True), ("hostile", False), ("bare", False)])
def test_every_page_opens_without_a_complaint(browser: Browser, address: str, run: str, dark: bool) -> None:
    with fresh_page(browser, dark=dark) as watched:
        visit(watched, address, f"/r/{run}/verdict", ".verdict")
        for name, panel in (
            ("Load", "ranks"),
            ("Communication", "waits"),
            ("GEMM", "rates"),
            ("Memory", "memory"),
            ("Host", "host"),
            ("Steps", "steps"),
            ("Run", "missing"),
        ):
            watched.page.locator("nav a", has_text=name).click()
            watched.page.locator(f"section#{panel} :is(.js-plotly-plot .main-svg, table, .empty)").first.wait_for()
            assert watched.page.locator("nav .here").inner_text() == name
        fine(watched, address)


def test_verdict_leads_to_the_evidence_and_back(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/verdict", ".js-plotly-plot .bars")
        assert "Rank 2 holds the hot experts" in page.locator(".finding h3").first.inner_text()
        page.locator(".finding a", has_text="see the evidence").first.click()
        page.locator("#ranks .js-plotly-plot").wait_for()
        assert page.url.endswith("/r/skewed/load?rank=2&layer=3")
        page.go_back()
        page.locator(".finding").first.wait_for()
        assert page.url.endswith("/r/skewed/verdict")
        fine(watched, address)


def test_two_runs_are_compared_and_turned_round(browser: Browser, address: str) -> None:
    with fresh_page(browser, dark=True) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/compare?with=bare", "#sides .js-plotly-plot .bars")
        page.locator("#times .js-plotly-plot .bars").wait_for()
        assert page.locator(".sides p").nth(1).inner_text().startswith("B: bare")
        assert page.locator("#settings tbody tr").count() > 0
        page.locator(".sides a", has_text="Turn round").click()
        until(watched, "document.querySelector('.sides p')?.innerText.startsWith('A: bare')")
        assert page.url.endswith("/r/bare/compare?with=skewed")
        fine(watched, address)


def test_table_sorts_filters_and_saves(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/steps", "#steps .js-plotly-plot")
        page.locator("#steps summary").click()
        page.locator("#steps tbody tr").first.wait_for()
        page.locator("#steps th", has_text="duration").click()
        assert page.locator("#steps tbody td").first.inner_text() == "31"
        page.locator("#steps .filter").fill("yes")
        assert page.locator("#steps tbody tr").count() == 2
        with page.expect_download() as download:
            page.locator("#steps .actions a").click()
        assert download.value.suggested_filename == "skewed-steps.csv"
        with page.expect_download() as picture:
            page.locator("#steps [data-picture=png]").click()
        assert picture.value.suggested_filename == "moescope-steps.png"
        fine(watched, address)


def test_theme_switches_and_stays(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/verdict", ".js-plotly-plot .bars")
        page.locator("#theme-button").click()
        until(watched, "getComputedStyle(document.body).backgroundColor === 'rgb(23, 27, 33)'")
        page.reload()
        page.locator(".finding").first.wait_for()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        fine(watched, address)


def state(watched: Watched) -> dict:
    script = """() => { const t = document.getElementById("timeline").moescope;
        return { view: t.view, open: [...t.open.keys()], tile: t.data.tile && t.data.tile.shift, hits: t.hits.length,
                 range: t.range, selected: t.selected && t.selected.position, focus: t.focus }; }"""
    return json.loads(json.dumps(watched.page.evaluate(script)))


def test_timeline_follows_keys_and_its_address_restores_it(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline", ".timeline-canvas")
        drawn = "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0"
        until(watched, drawn)
        before = state(watched)["view"]
        page.keyboard.press("w")
        page.keyboard.press("d")
        closer = state(watched)["view"]
        assert closer["t1"] - closer["t0"] < before["t1"] - before["t0"]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        until(watched, "document.getElementById('timeline')?.moescope?.open.has(1)")
        until(watched, "location.search.includes('open=1') && location.search.includes('rank=1')")
        left = state(watched)
        page.goto(page.url)
        until(watched, drawn)
        until(watched, "document.getElementById('timeline')?.moescope?.open.has(1)")
        again = state(watched)
        assert again["view"] == pytest.approx(left["view"], abs=1.0)
        assert again["focus"] == 1
        page.keyboard.press("f")
        assert state(watched)["view"] == pytest.approx(before)
        fine(watched, address)


def test_timeline_search_select_range_and_help(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline?open=0", ".timeline-canvas")
        until(watched, "document.getElementById('timeline')?.moescope?.open.has(0)")
        page.keyboard.press("/")
        page.keyboard.type("gemm")
        page.keyboard.press("Enter")
        until(watched, "document.getElementById('timeline')?.moescope?.hits.length === 4")
        assert "1 of 4" in page.locator(".timeline-bar .note").first.inner_text()
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.keyboard.press("f")
        box = page.locator(".timeline-canvas").bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 80)
        page.mouse.move(box["x"] + 700, box["y"] + 80)
        page.mouse.up()
        page.locator(".timeline-answers table.range").wait_for()
        assert page.locator(".timeline-answers tbody tr").count() == 3
        page.keyboard.press("Escape")
        assert not page.locator(".timeline-answers").is_visible()
        page.keyboard.press("?")
        assert page.locator(".timeline-help").is_visible()
        fine(watched, address)


def test_timeline_click_tells_the_collective(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline?t=1020000-1060000", ".timeline-canvas")
        until(watched, "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0")
        width = page.evaluate("document.querySelector('.timeline-canvas').clientWidth")
        page.locator(".timeline-canvas").click(position={"x": 150 + (width - 150) * 0.5, "y": 80})
        page.locator(".timeline-answers h3").wait_for()
        assert page.locator(".timeline-answers h3").inner_text().startswith("all to all 0")
        assert page.locator(".timeline-answers tbody tr").count() == 2
        fine(watched, address)


def test_first_analysis_shows_progress_and_can_be_cancelled(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/slow/verdict", "progress")
        assert page.locator("h2").inner_text() == "Analysing slow"
        page.get_by_text("Cancel").click()
        page.locator("h2", has_text="The analysis was cancelled").wait_for()
        fine(watched, address)


def test_steps_of_a_run_that_goes_on_appear_by_themselves(browser: Browser, address: str, traces: Path) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/growing/steps", "#steps .js-plotly-plot")
        assert page.locator("#steps .reading").inner_text().startswith("10 steps")
        page.locator("#steps summary").click()
        page.locator("#steps tbody tr").first.wait_for()
        page.locator("#steps th", has_text="step").first.click()
        page.locator("#steps .filter").fill("0")
        page.evaluate("Plotly.relayout(document.querySelector('.js-plotly-plot'), {'xaxis.range': [2, 5]})")
        page.evaluate("window.scrollTo(0, 200)")
        (traces / "growing" / "part-1").write_text("10 more")
        until(watched, "document.querySelector('#steps .reading').innerText.startsWith('20 steps')")
        until(watched, "document.querySelector('#steps tbody td')?.innerText === '19'")
        assert page.locator("#steps .filter").input_value() == "0"
        until(watched, "document.querySelector('.js-plotly-plot').layout.xaxis.range?.[1] === 5")
        assert page.evaluate("window.scrollY") == 200
        assert page.evaluate("document.querySelector('.js-plotly-plot').data[0].x.length") == 20
        fine(watched, address)


def test_a_trace_that_lands_appears_and_the_timeline_keeps_its_place(
    browser: Browser, address: str, traces: Path
) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        ranks = "document.getElementById('timeline')?.moescope?.rankList?.length"
        visit(watched, address, "/r/landing/timeline", ".timeline-canvas")
        until(watched, f"{ranks} === 1")
        until(watched, "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0")
        page.keyboard.press("w")
        page.keyboard.press("d")
        page.keyboard.press("Enter")
        page.locator(".legend-item").first.click()
        until(watched, "document.getElementById('timeline').moescope.open.has(0)")
        page.evaluate("document.getElementById('timeline').moescope.selectRange(20000, 60000)")
        page.locator("table.range").wait_for()
        before = state(watched)
        write_trace(traces / "landing", 1)
        until(watched, f"{ranks} === 2")
        until(watched, "document.querySelectorAll('table.range tbody tr').length === 3")
        after = state(watched)
        assert after["view"] == pytest.approx(before["view"], abs=1.0)
        assert after["range"] == before["range"]
        assert after["open"] == [0]
        assert page.locator(".legend-item").first.get_attribute("aria-pressed") == "false"
        fine(watched, address)


def test_timeline_is_used_by_keys_alone_and_its_answers_are_saved(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline?open=0", ".timeline-canvas")
        until(watched, "document.getElementById('timeline')?.moescope?.tile?.rows.size > 0")
        page.keyboard.press(".")
        page.locator(".timeline-answers h3").wait_for()
        assert page.locator(".timeline-answers h3").inner_text() == "gemm"
        page.keyboard.press("r")
        page.locator("table.range").wait_for()
        page.locator("table.range th").nth(1).focus()
        page.keyboard.press("Enter")
        assert page.locator("table.range th").nth(1).get_attribute("aria-sort") == "descending"
        with page.expect_download() as table:
            page.locator(".timeline-answers .action", has_text="CSV").click()
        lines = Path(table.value.path()).read_text().splitlines()
        assert lines[0] == "rank,Other compute [ns],All-to-all transfer [ns],Idle: host launch [ns],Idle: other [ns]"
        assert lines[1].split(",")[1] == "80000"
        with page.expect_download() as picture:
            page.locator(".timeline-bar .action", has_text="PNG").click()
        assert picture.value.suggested_filename == "moescope-timeline.png"
        fine(watched, address)


def test_a_link_to_another_moment_leads_there_and_the_tab_back(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline?t=1020000-1060000", ".timeline-canvas")
        until(watched, "document.getElementById('timeline')?.moescope?.view.t1 === 60000")
        page.keyboard.press("w")
        closer = state(watched)["view"]
        page.wait_for_timeout(300)
        page.locator("nav a", has_text="Run").click()
        page.locator("#sources").wait_for()
        page.locator("nav a", has_text="Timeline").click()
        until(watched, "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0")
        assert state(watched)["view"] == pytest.approx(closer, abs=1.0)
        page.locator("nav a", has_text="Verdict").click()
        page.locator(".finding a", has_text="timeline").first.click()
        until(watched, "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0")
        asked = page.evaluate("new URLSearchParams(location.search).get('t')").split("-")
        view = state(watched)["view"]
        assert view["t1"] - view["t0"] == pytest.approx(int(asked[1]) - int(asked[0]), abs=2.0)
        fine(watched, address)


def test_verdict_is_there_before_the_frame(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/verdict", ".finding")
        page.route("**/_dash-component-suites/**", lambda route: route.abort())
        page.goto(address + "/r/skewed/verdict")
        page.locator("#page-early .finding").first.wait_for()
        assert "Rank 2 holds the hot experts" in page.locator(".finding h3").first.inner_text()
        assert page.locator("#page-early .finding").count() <= 5


def test_timeline_pins_filters_and_links_waits(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/two/timeline", ".timeline-canvas")
        until(watched, "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("p")
        until(watched, "location.search.includes('pin=1')")
        page.goto(page.url)
        until(watched, "document.getElementById('timeline')?.moescope?.layout?.items[0]?.rank === 1")
        labels = page.locator(".legend-item").all_inner_texts()
        assert labels == ["Other compute", "All-to-all transfer", "Idle: host launch", "Idle: other"]
        page.locator(".legend-item").nth(1).click(modifiers=["Alt"])
        pressed = page.locator(".legend-item").evaluate_all("all => all.map((one) => one.ariaPressed)")
        assert pressed == ["false", "true", "false", "false"]
        fine(watched, address)


def test_tables_follow_from_run_to_run(browser: Browser, address: str) -> None:
    with fresh_page(browser) as watched:
        page = watched.page
        visit(watched, address, "/r/skewed/run", "#sources tbody tr")
        assert page.locator("#sources tbody tr").count() == 4
        page.locator(".others summary").click()
        page.locator(".others a", has_text="bare").click()
        until(watched, "document.querySelectorAll('#sources tbody tr').length === 1")
        fine(watched, address)
