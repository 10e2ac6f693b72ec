"""Fifty people looking at one analysed folder at once: how long the verdict, tables and tiles take them.

    python benchmarks/viewers.py runs/mine --viewers 50

Serves the folder with ``moescope serve``. Every viewer is a thread that opens the verdict, its table and the timeline,
then zooms; all at the same time. Prints one JSON object with times in milliseconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

MOVES = 12


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--viewers", type=int, default=50)
    options = parser.parse_args()
    command = [sys.executable, "-m", "moescope", "serve", str(options.folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = server.stdout.readline() if server.stdout else ""
            place = urlsplit(said[said.index("http://") :].split()[0]).netloc
            print(json.dumps(measure(place, options.folder.resolve().name.lower(), options.viewers), indent=1))
        finally:
            server.terminate()


def measure(place: str, slug: str, num_viewers: int) -> dict[str, object]:
    """Wait until the folder is analysed, then let all viewers loose."""
    while get(place, f"/timeline/{slug}/meta.json")[0] != 200:
        time.sleep(0.1)
    took: dict[str, list[float]] = defaultdict(list)
    failures: list[str] = []
    threads = [threading.Thread(target=look, args=(place, slug, took, failures)) for _ in range(num_viewers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    summary = {
        what: {"median_ms": round(statistics.median(times), 1), "worst_ms": round(max(times), 1), "num": len(times)}
        for what, times in took.items()
    }
    lasted = round(time.perf_counter() - began, 1)
    machine = f"{os.cpu_count()} processors"
    return {"viewers": num_viewers, **summary, "failures": failures[:5], "lasted_s": lasted, "machine": machine}


def look(place: str, slug: str, took: dict[str, list[float]], failures: list[str]) -> None:
    """One viewer's requests."""
    ask = {
        "page": f"/r/{slug}/verdict",
        "table": f"/data/{slug}/parts.json",
        "timeline": f"/timeline/{slug}/meta.json",
    }
    meta = b""
    for what, path in ask.items():
        meta = timed(place, what, path, took, failures) or meta
    found = json.loads(meta or b"{}")
    ranks = ",".join(str(rank["rank"]) for rank in found.get("ranks", [])[:30])
    shift = max(0, (found.get("length_ns", 1) // 1000).bit_length())
    for move in range(MOVES):
        zoom = max(0, shift - move // 2)
        query = f"first={move * 40}&count=3000&shift={zoom}&strips={ranks}&rows="
        timed(place, "tile", f"/timeline/{slug}/tile.bin?{query}", took, failures)


def timed(place: str, what: str, path: str, took: dict[str, list[float]], failures: list[str]) -> bytes:
    """One request's body; its time goes to ``took``."""
    began = time.perf_counter()
    status, body = get(place, path)
    took[what].append((time.perf_counter() - began) * 1000)
    if status != 200:
        failures.append(f"{status} {path}")
    return body


def get(place: str, path: str) -> tuple[int, bytes]:
    """Status and body."""
    connection = http.client.HTTPConnection(place, timeout=60)
    try:
        connection.request("GET", path, headers={"Host": place})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


if __name__ == "__main__":
    main()
