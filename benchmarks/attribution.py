"""Hold the analysis against simulated runs whose truth is known, and print one table.

    python benchmarks/attribution.py                      # 8 seeds, 8 and 64 ranks, one and several hosts
    python benchmarks/attribution.py --seeds 2 --ranks 8 --faults slow_rank expert_skew
    python benchmarks/attribution.py --pipeline 2 --ranks 8
    python benchmarks/attribution.py --scale 1024         # time and memory of one large step

Each seed draws the rank at fault, how strong the fault is, and, on several hosts, clocks up to 50 ms off that drift
up to 30 ppm. Runs of many ranks take one fault of each kind unless ``--faults`` names others. With ``--scores FILE``
every score is appended to the file as it is known, and what is there already is not run again. Exit code 1 if a goal
is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from attribution_cases import CORE, FAULTS, LARGE, MODEL, Case, cases, write_baseline
from attribution_scores import Score, goals, score, table

from moescope.simulate import SimConfig, parse_fault, simulate
from moescope.views.build import analyze

SPAWN = multiprocessing.get_context("spawn")
"""A forked child would inherit polars' threads as locks that nobody opens."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that could not be simulated or analysed."""

    case: Case
    why: str


def run(case: Case) -> Score | Failure:
    """Simulate, analyse, compare; a crash is a result too."""
    folder = Path(tempfile.mkdtemp(prefix="moescope-attribution-"))
    try:
        began = time.perf_counter()
        path = simulate(case.config(), folder / "run")
        baseline = write_baseline(case, folder / "baseline.json") if case.has_baseline else None
        simulated = time.perf_counter()
        analysis = analyze(path, workers=1, cache=False, baseline=baseline)
        seconds = {"simulate": simulated - began, "analyze": time.perf_counter() - simulated}
        return score(case, analysis, json.loads((path / "truth.json").read_text()), seconds)
    except Exception as error:
        return Failure(case, "".join(traceback.format_exception(error)[-3:]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_scale(ranks: int) -> None:
    """Simulate and analyse one step of many ranks; print time and peak memory."""
    folder = Path(tempfile.mkdtemp(prefix="moescope-scale-"))
    try:
        config = SimConfig(
            ranks=ranks, ep_size=min(64, ranks), steps=1, microbatches=1, model=MODEL,
            faults=(parse_fault(f"slow_rank:rank={ranks // 3}"), parse_fault("clock")),
        )  # fmt: skip
        began = time.perf_counter()
        path = simulate(config, folder / "run")
        simulated = time.perf_counter()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = sum(p.stat().st_size for p in (path / "traces").iterdir())
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            seconds, processor, peak, said = pool.submit(_analyze_apart, path).result()
        print(f"{ranks} ranks, 1 step, {size / 1e6:.0f} MB of traces: simulated in {simulated - began:.0f} s "
              f"({before / 1e6:.2f} GB), analysed in {seconds:.0f} s ({processor:.0f} s of one processor, "
              f"{peak / 1e6:.2f} GB)\n{said}")  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _analyze_apart(path: Path) -> tuple[float, float, int, str]:
    began, worked = time.perf_counter(), time.process_time()
    analysis = analyze(path, workers=1)
    said = "\n".join(f"{f.code} rank {f.rank}: {f.claim}" for f in analysis.findings)
    spent = time.perf_counter() - began, time.process_time() - worked
    return *spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, said


def results(todo: Sequence[Case], jobs: int) -> Iterator[Score | Failure]:
    """The cases' results in order, as they are known."""
    if jobs == 1:
        yield from map(run, todo)
        return
    with ProcessPoolExecutor(jobs, mp_context=SPAWN) as pool:
        yield from pool.map(run, todo)


def chosen(faults: Sequence[str] | None, seeds: int, ranks: Iterable[int], pipeline: int) -> list[Case]:
    """The faults named, else all of them on few ranks and one of each kind on many."""
    every = cases(faults or list(FAULTS), seeds, ranks, pipeline)
    return [case for case in every if faults or case.ranks < LARGE or case.fault in CORE]


def known(file: Path | None) -> dict[Case, Score]:
    """Scores that an earlier call wrote; a line cut off by an interrupt is left out."""
    found: dict[Case, Score] = {}
    if file is None or not file.exists():
        return found
    for line in file.read_text().splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        case = Case(**values.pop("case"))
        found[case] = Score(case, **values)
    return found


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS))
    parser.add_argument("--pipeline", type=int, default=1, help="pipeline stages")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--part", type=int, nargs=2, default=[0, 1], metavar=("K", "N"), help="only every Nth run")
    parser.add_argument("--scores", type=Path, nargs="+", help="append every score to the first of these; skip theirs")
    parser.add_argument("--scale", type=int, metavar="RANKS", help="only time and memory of one step of so many ranks")
    return parser.parse_args()


def main() -> int:
    """Run the cases and print the table, the goals and what went wrong."""
    args = arguments()
    if args.scale:
        measure_scale(args.scale)
        return 0
    files = args.scores or []
    wanted = chosen(args.faults, args.seeds, args.ranks, args.pipeline)
    done = {case: found for file in files for case, found in known(file).items()}
    first, every = args.part
    todo = [case for index, case in enumerate(wanted) if case not in done and index % every == first]
    failures: list[Failure] = []
    for number, result in enumerate(results(todo, args.jobs), 1):
        if isinstance(result, Failure):
            failures.append(result)
        else:
            done[result.case] = result
            if files:
                with files[0].open("a") as stream:
                    stream.write(json.dumps(asdict(result)) + "\n")
        said = result.why if isinstance(result, Failure) else result.said
        print(f"{number} of {len(todo)}: {result.case.name} seed {result.case.seed}: {said}", file=sys.stderr)
    return report([done[case] for case in wanted if case in done], failures)


def report(scores: Sequence[Score], failures: Sequence[Failure]) -> int:
    """Print the table, the goals and what went wrong; return the exit code."""
    for failure in failures:
        print(f"FAILED  {failure.case}\n{failure.why}")
    if not scores:
        return 1
    print(table(scores))
    held = [("every run analysed", not failures), *goals(scores)]
    for text, good in held:
        print(f"{'holds ' if good else 'MISSED'}  {text}")
    for one in scores:
        if not one.cause_right or one.rank_right is False:
            print(f"  {one.case.name}, seed {one.case.seed}: {one.said}")
    return 0 if all(good for _, good in held) else 1


if __name__ == "__main__":
    sys.exit(main())
