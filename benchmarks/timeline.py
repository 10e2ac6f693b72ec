"""The timeline in a real browser: first tile, repaints and tile fetches on many events over many ranks.

    python benchmarks/timeline.py --events 1000000 --ranks 64

Writes a synthetic folder (kernels on two streams, operations nested three deep on a thread; no collectives to match),
analyses it, serves it with ``moescope serve``, and drives a headless Chromium: navigate, then zoom and pan by keys,
also with one rank opened. Prints one JSON object. "First tile" counts from the start of the navigation to the painted
tile; cold is the first one, as soon as the server has announced its address.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from moescope_app.runs import Runs
from playwright.sync_api import Browser, Page, sync_playwright

from moescope.trace import open_directory
from moescope.views.build import analyze, open_timeline
from moescope.views.model import Analysis

KEYS = "wwwddsdwwaaswwdd"
KEYS = "wwwddsdwwaaswwdd"
TIMELINE = "(document.getElementById('timeline') ?? document.getElementById('timeline-early'))?.moescope"
PAINTED = f"{TIMELINE}?.stats.firstTileMs ?? null"
STATS = f"(() => {{ const t = {TIMELINE}; return [t.stats.repaintMs, t.data.fetchMs]; }})()"
FITTED = f"{TIMELINE}.data.tile?.rows.size > 0"
VERDICT = "document.querySelector('.verdict')?.innerText ?? null"
CHECKED_RANKS = 2
CHECKED_SHIFTS = (8, 12, 16, 20, 24)


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
        result = check_counts(folder, analysis) | drive(folder)
    events = sum(source.num_events for source in analysis.sources)
    result |= {"events": events, "ranks": options.ranks, "analysed_s": round(analysed_s, 1)}
    result |= {"machine": f"{platform.machine()}, {os.cpu_count()} processors", "python": platform.python_version()}
    print(json.dumps(result | {"date": datetime.date.today().isoformat()}, indent=1))


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


def check_counts(folder: Path, analysis: Analysis) -> dict[str, object]:
    """Whether tiles hold every slice of some ranks: the long ones singly, the others counted; against the events."""
    timeline, missing = open_timeline(folder, analysis), 0
    for trace in open_directory(folder).ranks[:CHECKED_RANKS]:
        duration = trace.events(("dur_ns",))["dur_ns"].to_numpy()
        rows = [row for lane in timeline.lanes(trace.rank) for row in lane.rows]
        for shift in CHECKED_SHIFTS:
            found = [row.query(-1, (timeline.length_ns >> shift) + 3, shift) for row in rows]
            longs = sum(len(positions) for positions, _ in found)
            shorts = sum(int(short.count.sum()) for _, short in found)
            long_events = int((duration >= 1 << shift).sum())
            missing += abs(longs - long_events) + abs(shorts - (len(duration) - long_events))
    return {"slices_missing_or_miscounted": missing}


def drive(folder: Path) -> dict[str, object]:
    """Serve ``folder`` with the command line and measure in a browser."""
    command = [sys.executable, "-m", "moescope", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            said = server.stdout.readline() if server.stdout else ""
            address = said[said.index("http://") :].split()[0] + f"r/{slug_of(folder)}/timeline"
            times = [seen(browser, address, PAINTED) for _ in range(4)]
            verdict = [seen(browser, address.replace("/timeline", "/verdict"), VERDICT) for _ in range(3)]
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(address)
            repaint, fetch = interact(page)
            browser.close()
        finally:
            server.terminate()
    return {
        "first_tile_cold_s": round(times[0], 2),
        "first_tile_warm_s": round(statistics.median(times[1:]), 2),
        "verdict_s": round(statistics.median(verdict), 2),
        "mean_repaint_ms": round(statistics.mean(repaint), 2),
        "max_repaint_ms": round(max(repaint), 1),
        "mean_fetch_ms": round(statistics.mean(fetch), 1),
        "max_fetch_ms": round(max(fetch), 1),
        "num_repaints": len(repaint),
        "num_fetches": len(fetch),
    }


def slug_of(folder: Path) -> str:
    """The folder's name in addresses."""
    return Runs([folder], lambda *_: None, lambda *_: None).first().slug  # type: ignore[arg-type,return-value]


def seen(browser: Browser, address: str, script: str) -> float:
    """Seconds from navigation until ``script`` gives something, in a fresh page without a cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    while page.evaluate(script) is None:
        page.wait_for_timeout(10)
    lasted = time.perf_counter() - began
    context.close()
    return lasted


def interact(page: Page) -> tuple[list[float], list[float]]:
    """Zoom and pan by keys, then with a rank opened; return the durations of repaints and of tile fetches, in ms."""
    page.wait_for_timeout(1500)
    before = [len(values) for values in page.evaluate(STATS)]
    for opened in (False, True):
        page.keyboard.press("f")
        if opened:
            page.keyboard.press("Enter")
            while not page.evaluate(FITTED):
                page.wait_for_timeout(50)
        for key in KEYS:
            page.keyboard.press(key)
            page.wait_for_timeout(120)
    page.wait_for_timeout(1000)
    repaint, fetch = page.evaluate(STATS)
    return repaint[before[0] :], fetch[before[1] :]


if __name__ == "__main__":
    main()
