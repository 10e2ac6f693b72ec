"""Make the pictures in docs/images: every page of the dashboard and the report, as a reader sees them.

    python docs/make_pictures.py                    # of a simulated run that it makes itself
    python docs/make_pictures.py runs/mine --out /tmp/pictures

Needs Chromium (``apt-get install chromium``). Without a run it simulates 16 ranks on two hosts whose clocks differ,
with hot experts on rank 2; the pictures then say so, as every page does.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.serving import listen
from playwright.sync_api import Browser, Page, sync_playwright
from waitress import create_server

from moescope.report import write_report
from moescope.views.build import analyze, open_timeline

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 900
PAGES = ("verdict", "load", "communication", "gemm", "memory", "host", "steps", "run")
DARK = ("verdict", "timeline")
WHOLE = ("load", "gemm", "memory", "steps")
SIMULATED = (
    "simulate", "--ranks", "16", "--ranks-per-host", "8", "--layers", "5", "--steps", "3",
    "--fault", "expert_skew:rank=2,factor=2", "--fault", "clock",
)  # fmt: skip
PAINTED = "document.getElementById('timeline')?.moescope?.stats.firstTileMs > 0"


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run or a folder of traces")
    parser.add_argument("--out", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        run = options.run
        if run is None:
            run = Path(scratch) / "skewed"
            subprocess.run([sys.executable, "-m", "moescope", *SIMULATED, "--out", str(run)], check=True)
        report = Path(scratch) / "report.html"
        write_report(analyze(run), report)
        take(run, report, options.out)


def take(run: Path, report: Path, out: Path) -> None:
    """Serve ``run``, open ``report``, and write a picture of each page into ``out``."""
    runs = Runs([run], lambda path, show: analyze(path, progress=show), open_timeline)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = create_server(create_app(runs, port=port).server, sockets=[listener], threads=4)
    threading.Thread(target=server.run, daemon=True).start()
    address = f"http://127.0.0.1:{port}/r/{runs.first().slug}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            suffix = "-dark" if scheme == "dark" else ""
            for name in PAGES if scheme == "light" else DARK:
                if name != "timeline":
                    page = open_page(browser, f"{address}/{name}", scheme)
                    save(page, out / f"{name}{suffix}.png", whole=name in WHOLE)
            page = open_page(browser, report.as_uri(), scheme)
            save(page, out / f"report{suffix}.png", whole=False)
            timeline(browser, address, scheme, out / f"timeline{suffix}.png")
        browser.close()
    server.close()


def open_page(browser: Browser, address: str, scheme: str) -> Page:
    """A page with its charts drawn."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    page.locator("h2, .finding, .timeline-canvas").first.wait_for(timeout=120_000)
    while page.locator("progress").count():
        page.wait_for_timeout(100)
    page.wait_for_timeout(3000)
    return page


def save(page: Page, path: Path, *, whole: bool) -> None:
    """Write what the page shows; ``whole``: down to its end."""
    page.screenshot(path=path, full_page=whole)
    page.close()
    print(f"Wrote {path}")


def timeline(browser: Browser, address: str, scheme: str, path: Path) -> None:
    """The timeline where the first finding points, a collective chosen; in the dark picture its rank is opened."""
    page = open_page(browser, f"{address}/verdict", scheme)
    page.locator(".finding a", has_text="timeline").first.click()
    page.locator(".timeline-canvas").wait_for()
    while not page.evaluate(PAINTED):
        page.wait_for_timeout(50)
    page.locator(".timeline-canvas").click(position={"x": (WIDTH + 150) / 2, "y": 70})
    page.wait_for_timeout(1500)
    if scheme == "dark":
        page.keyboard.press("Enter")
        page.wait_for_timeout(2000)
    save(page, path, whole=False)


if __name__ == "__main__":
    main()
