"""Make the pictures in docs/images: every page of the dashboard and the report, as a reader sees them.

    python docs/make_pictures.py
    python docs/make_pictures.py --out /tmp/pictures --only timeline

Shows copies of the runs in ``sample_traces``. Needs Chromium (``apt-get install chromium``); where ``pngquant`` is
installed the files are a third as large.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.serving import listen
from playwright.sync_api import Browser, Page, sync_playwright
from waitress import create_server

from moescope.report import write_report
from moescope.views.build import analyze, open_timeline

IMAGES = Path(__file__).parent / "images"
SAMPLES = Path(__file__).parents[1] / "sample_traces"
RUNS = ("two-hosts", "balanced", "skewed")
REPORT = "the report"
WIDTH, HEIGHT = 1280, 900
TIMELINE = "(document.getElementById('timeline-view') ?? document.getElementById('timeline'))?.moescope"


def nothing(_page: Page) -> None:
    """A page as it opens."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: where, what is done first, and whether the page is shown down to its end."""

    name: str
    place: str
    act: Callable[[Page], None] = nothing
    scheme: Literal["light", "dark"] = "light"
    whole: bool = False
    height: int = HEIGHT


def on_a_wait(page: Page) -> None:
    """From the verdict's first finding to its moment, then a click on a wait of the first rank."""
    page.locator(".finding a", has_text="timeline").first.click()
    settled(page)
    place = page.evaluate(f"{TIMELINE}.painter.x({TIMELINE}.links[0].members[0].start) + 12")
    page.locator(".timeline-canvas").click(position={"x": place, "y": 85})
    page.locator(".timeline-answers h3").wait_for()
    page.mouse.move(10, 10)


def opened(page: Page) -> None:
    """A rank's streams and threads, and the parts of a range."""
    settled(page)
    page.evaluate(f"{TIMELINE}.openRank({TIMELINE}.focus)")
    for key in "wwwww":
        page.keyboard.press(key)
        page.wait_for_timeout(250)
    middle = f"({TIMELINE}.view.t0 + {TIMELINE}.view.t1) / 2"
    page.evaluate(f"{TIMELINE}.selectRange({middle}, {middle} + ({TIMELINE}.view.t1 - {middle}) / 2)")
    page.locator("table.range").wait_for()


def down_to_timeline(page: Page) -> None:
    """The report's timeline."""
    settled(page)
    page.locator(".finding a", has_text="timeline").first.click()
    page.locator("#timeline").scroll_into_view_if_needed()


SHOTS = (
    Shot("verdict", "/r/two-hosts/verdict", whole=True),
    Shot("verdict-dark", "/r/two-hosts/verdict", scheme="dark", whole=True),
    Shot("timeline", "/r/two-hosts/verdict", on_a_wait),
    Shot("timeline-dark", "/r/two-hosts/timeline", opened, scheme="dark"),
    Shot("load", "/r/skewed/load", whole=True),
    Shot("communication", "/r/two-hosts/communication", whole=True),
    Shot("gemm", "/r/two-hosts/gemm", whole=True),
    Shot("memory", "/r/two-hosts/memory", whole=True),
    Shot("host", "/r/two-hosts/host", whole=True),
    Shot("steps", "/r/skewed/steps", whole=True),
    Shot("run", "/r/two-hosts/run", whole=True),
    Shot("compare", "/r/balanced/compare?with=skewed", whole=True),
    Shot("report", REPORT, height=950),
    Shot("report-dark", REPORT, down_to_timeline, scheme="dark", height=785),
)


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--only", nargs="*", help="names of pictures")
    parser.add_argument("--keep", type=Path, help="keep the copies of the runs here and use them again")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [shot for shot in SHOTS if not options.only or shot.name in options.only]
    with tempfile.TemporaryDirectory() as scratch:
        place = options.keep or Path(scratch)
        for name in RUNS:
            if not (place / name).exists():
                shutil.copytree(SAMPLES / name, place / name)
        take_all(chosen, [place / name for name in RUNS], Path(scratch) / "report.html", options.out)


def take_all(shots: list[Shot], runs: list[Path], report: Path, out: Path) -> None:
    """Take ``shots`` of a dashboard over ``runs`` and of the report of the first."""
    if any(shot.place == REPORT for shot in shots):
        write_report(
            analyze(runs[0]), report, open_timeline=lambda shown, rename: open_timeline(runs[0], shown, rename=rename)
        )
    with sync_playwright() as playwright, served(runs) as address:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for shot in shots:
            take(browser, shot, report.as_uri() if shot.place == REPORT else address + shot.place, out)
        browser.close()


@contextmanager
def served(folders: list[Path]) -> Iterator[str]:
    """The address of a dashboard over ``folders``, analysed."""
    runs = Runs(folders, lambda path, show: analyze(path, progress=show), open_timeline)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = create_server(create_app(runs, port=port).server, sockets=[listener], threads=4)
    threading.Thread(target=server.run, daemon=True).start()
    yield f"http://127.0.0.1:{port}"
    server.close()


def take(browser: Browser, shot: Shot, address: str, out: Path) -> None:
    """Open a page, act, and write what it shows."""
    page = browser.new_page(viewport={"width": WIDTH, "height": shot.height}, color_scheme=shot.scheme)
    page.goto(address)
    page.locator("h2, .finding, .timeline-canvas").first.wait_for(timeout=120_000)
    while page.locator("progress").count():
        page.wait_for_timeout(100)
    page.wait_for_timeout(2500)
    shot.act(page)
    page.wait_for_timeout(1500)
    file = out / f"{shot.name}.png"
    page.screenshot(path=file, full_page=shot.whole)
    page.close()
    smaller = shutil.which("pngquant")
    if smaller is not None:
        subprocess.run([smaller, "--force", "--skip-if-larger", "--ext", ".png", "--strip", str(file)], check=False)
    print(f"Wrote {file} ({file.stat().st_size / 1000:.0f} kB)")


def settled(page: Page) -> None:
    """Wait until a timeline has drawn its tiles and the links of its waits."""
    while not page.evaluate(f"{TIMELINE}?.stats.firstTileMs > 0 && {TIMELINE}.minimap != null"):
        page.wait_for_timeout(50)
    page.wait_for_timeout(800)


if __name__ == "__main__":
    main()
