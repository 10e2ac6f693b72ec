"""How fast and in how much memory traces become a store, beside two yardsticks.

    python benchmarks/reader.py                                  # 200 MB of each of three traces, two workers
    python benchmarks/reader.py --hta /path/to/venv/bin/python   # with HolisticTraceAnalysis from another environment
    python benchmarks/reader.py --mb 0 --large-mb 3500 --ranks 64    # no table; a file of 10 M events, up to 64 ranks

Recorded traces are made larger by repeating their events with later times and fresh ids, in their own formatting.
Every figure is the best, and below it the median, of ``--repeats`` runs, each in a process of its own, alternating with
its yardstick: ``orjson.loads`` of the same bytes without garbage collection (what only parsing into Python objects
costs), and loading with HolisticTraceAnalysis, twice. ``ratio`` is ours over orjson's; ``speed-up`` is
HolisticTraceAnalysis' over ours. Memory is the largest sum of the proportional set sizes of all processes of a run,
in runs of their own: looking for it every 20 ms would slow a timed run by a tenth.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRACES = ("mi300_resnet_ckpt", "a2a16_rank0", "b200_eager")
_IDS = re.compile(rb'"(ts|External id|correlation|id|Ev Idx)":(\s*)(\d+)')
_ID_STRIDE = 10_000_000
_HTA_REPEATS = 2
"""More would take most of an hour."""
_WEIGHED = 2

OURS = """
import json, sys, time
from moescope.trace import open_directory
begin = time.perf_counter()
directory = open_directory(sys.argv[1], workers=int(sys.argv[2]))
opened = time.perf_counter() - begin
rows = directory.ranks[0].events(["start_ns", "dur_ns"], categories=["annotation"]).height
print(json.dumps([opened, time.perf_counter() - begin, sum(t.num_events for t in directory.ranks)]))
"""
ORJSON = """
import gc, json, orjson, sys, time
from pathlib import Path
data = next(Path(sys.argv[1]).glob("*.json")).read_bytes()
gc.disable()
begin = time.perf_counter()
tree = orjson.loads(data)
print(json.dumps([time.perf_counter() - begin]))
"""
HTA = """
import json, sys, time, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
begin = time.perf_counter()
TraceAnalysis(trace_dir=sys.argv[1])
print(json.dumps([time.perf_counter() - begin]))
"""


@dataclass(frozen=True)
class Run:
    """One process' answer and the most memory its processes held together."""

    answer: list[float]
    peak_bytes: int


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = options.add_argument
    folder = Path(__file__).parents[2] / "shared" / "traces"
    add(
        "--traces",
        type=Path,
        default=folder,
        help=f"holds the folders {', '.join(TRACES)}, one .json.gz each; {folder}",
    )
    add("--mb", type=int, default=200, help="size of each trace of the table, 200; 0 leaves the table out")
    add("--workers", type=int, default=2, help="to read with, 2")
    add("--repeats", type=int, default=3, help="runs of each, 3")
    add("--large-mb", type=int, default=0, help="also read one file of this size; 0, the default, leaves it out")
    add("--ranks", type=int, default=0, help="also read folders of 1, 4, 16 ... up to so many ranks; 0 leaves them out")
    add("--hta", type=Path, help="a Python that can import HolisticTraceAnalysis; without it there is no speed-up")
    chosen = options.parse_args()
    if chosen.mb:
        _require(sys.executable, "orjson", "pip install -e '.[dev]'")
    if chosen.mb and chosen.hta:
        _require(str(chosen.hta), "hta", "--hta names the Python of an environment made with pip install -e '.[hta]'")
    with tempfile.TemporaryDirectory(prefix="moescope-bench-") as scratch:
        if chosen.mb:
            _table(Path(scratch), chosen)
        if chosen.large_mb:
            _large(Path(scratch), chosen)
        if chosen.ranks:
            _scaling(Path(scratch), chosen)


def _require(python: str, module: str, remedy: str) -> None:
    """End with a word where a yardstick is absent."""
    try:
        found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise SystemExit(f"{python}: {error.strerror}") from error
    if not found:
        raise SystemExit(f"{python} cannot import {module}: {remedy}")


def _table(scratch: Path, chosen: argparse.Namespace) -> None:
    print(f"{'trace':18} {'of':6} {'MB':>6} {'orjson s':>9} {'ours s':>7} {'ratio':>6} {'MB/s':>6} {'gz/plain':>8} "
          f"{'peak MB':>8} {'limit MB':>8} {'HTA s':>7} {'speed-up':>8}")  # fmt: skip
    for name in TRACES:
        _compare(name, scratch, chosen)


def _compare(name: str, scratch: Path, chosen: argparse.Namespace) -> None:
    """One line of the table: one trace, plain and compressed, beside its yardsticks."""
    plain, packed = scratch / name, scratch / f"{name}.gz"
    size = repeat_trace(_recorded(chosen.traces, name), plain / "rank0.json", chosen.mb * 1_000_000)
    packed.mkdir()
    with (plain / "rank0.json").open("rb") as source, gzip.open(packed / "rank0.json.gz", "wb", 6) as target:
        shutil.copyfileobj(source, target)
    orjson_s, ours, gz_s, hta_s = [], [], [], []
    for turn in range(chosen.repeats):
        orjson_s.append(_run(sys.executable, ORJSON, plain).answer[0])
        ours.append(_read_cold(plain, chosen.workers))
        gz_s.append(_read_cold(packed, chosen.workers).answer[0])
        if chosen.hta and turn < _HTA_REPEATS:
            hta_s.append(_run(str(chosen.hta), HTA, plain).answer[0])
    peak = max(_read_cold(plain, chosen.workers, weigh=True).peak_bytes for _ in range(_WEIGHED))
    for what, of in (("best", min), ("median", statistics.median)):
        ours_s, yardstick = of(run.answer[0] for run in ours), of(orjson_s)
        hta = of(hta_s) if hta_s else float("nan")
        print(f"{name:18} {what:6} {size / 1e6:6.0f} {yardstick:9.2f} {ours_s:7.2f} {ours_s / yardstick:6.2f} "
              f"{size / 1e6 / ours_s:6.0f} {of(gz_s) / ours_s:8.2f} {peak / 1e6:8.0f} {1.2 * size / 1e6 + 300:8.0f} "
              f"{hta:7.1f} {hta / ours_s:8.1f}", flush=True)  # fmt: skip
    shutil.rmtree(plain)
    shutil.rmtree(packed)


def _large(scratch: Path, chosen: argparse.Namespace) -> None:
    folder = scratch / "large"
    size = repeat_trace(_recorded(chosen.traces, TRACES[0]), folder / "rank0.json", chosen.large_mb * 1_000_000)
    cold = _read_cold(folder, chosen.workers, weigh=True)
    again = min(
        (_run(sys.executable, OURS, folder, str(chosen.workers)) for _ in range(3)), key=lambda run: run.answer[1]
    )
    print(f"one file of {size / 1e6:.0f} MB, {cold.answer[2]:,.0f} events: read in {cold.answer[0]:.1f} s "
          f"({size / 1e6 / cold.answer[0]:.0f} MB/s), peak {cold.peak_bytes / 1e6:.0f} MB of "
          f"{1.2 * size / 1e6 + 300:.0f} MB; opened again in {again.answer[0]:.2f} s, first answer after "
          f"{again.answer[1]:.2f} s", flush=True)  # fmt: skip
    shutil.rmtree(folder)


def _scaling(scratch: Path, chosen: argparse.Namespace) -> None:
    first = scratch / "one.json"
    size = repeat_trace(_recorded(chosen.traces, TRACES[0]), first, 15_000_000)
    count = 1
    while count <= chosen.ranks:
        folder = scratch / f"ranks{count}"
        folder.mkdir()
        data = first.read_bytes()
        for rank in range(count):
            (folder / f"rank{rank}.json").write_bytes(data.replace(b'"rank": 0', b'"rank": %d' % rank, 1))
        run = _read_cold(folder, chosen.workers, weigh=True)
        print(f"{count:3} ranks of {size / 1e6:.0f} MB: {run.answer[0]:6.2f} s, {run.answer[0] / count:.2f} s a rank, "
              f"peak {run.peak_bytes / 1e6:.0f} MB", flush=True)  # fmt: skip
        shutil.rmtree(folder)
        count *= 4


def _recorded(traces: Path, name: str) -> Path:
    return next((traces / name).glob("*.json.gz"))


def repeat_trace(source: Path, target: Path, size_bytes: int) -> int:
    """Write the trace ``source`` with its events repeated to about ``size_bytes``; return the size it came to."""
    data = gzip.decompress(source.read_bytes())
    opening = re.search(rb'"traceEvents"\s*:\s*\[', data)
    if opening is None:
        raise SystemExit(f"{source} holds no traceEvents")
    ends = [match.start() + 1 for match in re.finditer(rb"\}\s*\]\s*(?=[,}])", data) if match.start() > opening.end()]
    body = data[opening.end() : ends[-1]]
    times = [int(text) for text in re.findall(rb'"ts":\s*(\d+)', body)]
    span = max(times) - min(t for t in times if t) + 1000
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        stream.write(data[: opening.end()])
        copies = max(1, round(size_bytes / len(body)))
        for copy, text in enumerate(_copies(body, span, copies)):
            stream.write(b"," * bool(copy) + text)
        stream.write(data[ends[-1] :])
    return target.stat().st_size


def _copies(body: bytes, span_us: int, count: int) -> Iterator[bytes]:
    for copy in range(count):

        def later(match: re.Match[bytes], copy: int = copy) -> bytes:
            value = int(match[3])
            shift = copy * (span_us if match[1] == b"ts" else _ID_STRIDE)
            return b'"%b":%b%d' % (match[1], match[2], value + shift if value else value)

        yield _IDS.sub(later, body) if copy else body


def _read_cold(folder: Path, workers: int, *, weigh: bool = False) -> Run:
    shutil.rmtree(folder / ".moescope", ignore_errors=True)
    return _run(sys.executable, OURS, folder, str(workers), weigh=weigh)


def _run(python: str, code: str, *arguments: object, weigh: bool = False) -> Run:
    """Run it, and look for its memory meanwhile if asked."""
    command = [python, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        peak, done = [0], threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                peak[0] = max(peak[0], sum(map(_proportional_bytes, _family(process.pid))))

        watcher = threading.Thread(target=watch)
        if weigh:
            watcher.start()
        output, _ = process.communicate()
        if weigh:
            done.set()
            watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:1])} failed with {process.returncode}")
    return Run(json.loads(output.splitlines()[-1]), peak[0])


def _family(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for parent in found:
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
        except OSError:  # the process has ended
            continue
        for task in tasks:
            found += [int(text) for text in _text(Path(f"/proc/{parent}/task/{task}/children")).split()]
    return found


def _proportional_bytes(pid: int) -> int:
    match = re.search(r"^Pss:\s+(\d+) kB", _text(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


if __name__ == "__main__":
    begun = time.perf_counter()
    main()
    print(f"took {time.perf_counter() - begun:.0f} s")
