"""The timeline in a real browser: first tile, repaints and tile fetches on many events over many ranks.

    python benchmarks/timeline.py --events 1000000 --ranks 64

Writes a synthetic folder (kernels on two streams, operations nested three deep on a thread; no collectives to match),
analyses it, serves it, and drives a headless Chromium: navigate, then zoom and pan by keys, with one rank opened.
Prints one JSON object. "First tile" counts from the start of the navigation to the painted tile.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from moescope_app.runs import Runs
from moescope_app.server import create_app
from moescope_app.serving import listen
from playwright.sync_api import Page, sync_playwright
from waitress import create_server

from moescope.trace import open_directory
from moescope.views.build import analyze
from moescope.views.timeline import Timeline

KEYS = "wwwddsdwwaaswwdd"
PAINTED = "document.getElementById('timeline')?.moescope?.stats.firstTileMs ?? null"
STATS = (
    "(() => { const t = document.getElementById('timeline').moescope; return [t.stats.repaintMs, t.data.fetchMs]; })()"
)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="keep the traces here and use them again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "traces"
        if not folder.exists():
            write_folder(folder, options.events, options.ranks)
        began = time.perf_counter()
        analysis = analyze(folder)
        analysed_s = time.perf_counter() - began
        runs = Runs([folder], lambda *_: analysis, lambda path, known: Timeline(open_directory(path), known))
        result = drive(runs)
    events = sum(source.num_events for source in analysis.sources)
    result |= {"events": events, "ranks": options.ranks, "analysed_s": round(analysed_s, 1)}
    result |= {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    print(json.dumps(result, indent=1))


def write_folder(folder: Path, num_events: int, num_ranks: int) -> None:
    """Write one Kineto file per rank."""
    folder.mkdir(parents=True)
    for rank in range(num_ranks):
        events = list(rank_events(num_events // num_ranks, np.random.default_rng(rank)))
        trace = {
            "traceEvents": events,
            "distributedInfo": {"rank": rank, "world_size": num_ranks},
            "host_name": "bench",
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))


def rank_events(num_events: int, random: np.random.Generator) -> list[dict[str, object]]:
    """Half of the events are kernels on two streams, the others operations three deep on one thread."""
    events = []
    kernels, groups = num_events // 2, num_events // 6
    for stream in (7, 20):
        lengths = random.integers(2, 60, kernels // 2)
        ends = np.cumsum(lengths + random.integers(0, 8, kernels // 2))
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True):
            name = f"kernel_{length % 23}"
            events.append(slice_(name, "kernel", (end - length, length), (0, stream), device=0, stream=stream))
    span = 34 * kernels // 2
    at = np.sort(random.integers(0, span, groups))
    at += np.arange(groups) * 12
    for start in at.tolist():
        for depth, name in enumerate(("aten::linear", "aten::addmm", "cudaLaunchKernel")):
            events.append(slice_(name, "cpu_op", (start + depth, 11 - 3 * depth), (1, 1)))
    return events


def slice_(name: str, category: str, times: tuple[int, int], place: tuple[int, int], **args: int) -> dict[str, object]:
    """A complete event; ``times``: start and duration, ``place``: process and thread."""
    (ts, dur), (pid, tid) = times, place
    return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def drive(runs: Runs) -> dict[str, object]:
    """Serve ``runs`` and measure in a browser."""
    run = runs.first()
    runs.ask(run)
    while run.status.pending:
        time.sleep(0.05)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = create_server(create_app(runs, port=port).server, sockets=[listener], threads=8)
    threading.Thread(target=server.run, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        address = f"http://127.0.0.1:{port}/r/{run.slug}/timeline"
        cold = first_tile(page, address)
        warm = first_tile(page, address)
        repaint, fetch = interact(page)
        browser.close()
    server.close()
    return {
        "first_tile_cold_s": round(cold, 2),
        "first_tile_warm_s": round(warm, 2),
        "mean_repaint_ms": round(statistics.mean(repaint), 2),
        "max_repaint_ms": round(max(repaint), 1),
        "mean_fetch_ms": round(statistics.mean(fetch), 1),
        "num_repaints": len(repaint),
        "num_fetches": len(fetch),
    }


def first_tile(page: Page, address: str) -> float:
    """Seconds from navigation to the first painted tile; cold: the server has read nothing for the timeline yet."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    while page.evaluate(PAINTED) is None:
        page.wait_for_timeout(10)
    return time.perf_counter() - began


def interact(page: Page) -> tuple[list[float], list[float]]:
    """Zoom and pan by keys, then with a rank opened; return the durations of repaints and of tile fetches, in ms."""
    page.wait_for_timeout(1000)
    before = [len(values) for values in page.evaluate(STATS)]
    for opened in (False, True):
        page.keyboard.press("f")
        if opened:
            page.keyboard.press("Enter")
            page.wait_for_timeout(2000)
        for key in KEYS:
            page.keyboard.press(key)
            page.wait_for_timeout(120)
    page.wait_for_timeout(1000)
    repaint, fetch = page.evaluate(STATS)
    return repaint[before[0] :], fetch[before[1] :]


if __name__ == "__main__":
    main()
