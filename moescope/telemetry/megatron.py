"""Routing traces of Megatron-Core: ``router_trace_rank{r}.jsonl``, which ``--moe-routing-trace-path`` writes.

One line per step, layer and forward pass: ``{"step", "stage", "block", "layer", "rank", "num_tokens", "topk",
"top_indices": [[expert, ...], ...]}``. Passes of one layer in one step are its microbatches, in order. What the file
does not say: how many experts there are (the highest index seen is taken as the last), and whether a pass was one of
evaluation or recomputation; a step in which each pass of a layer has an equal twin is taken as recomputed.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
from moescope_hooks.schema import EXPERT_LOAD
from numpy.typing import NDArray

from moescope.intake import lines

IntArray = NDArray[np.int64]


class _Pass(msgspec.Struct):
    step: int
    layer: int
    rank: int
    top_indices: list[list[int]]
    block: str = "decoder"
    mtp_idx: int | None = None


MOST_EXPERTS = 1 << 16
"""Of a layer, above any that was ever trained."""

_Place = tuple[int, int, str, int, int]
"""Rank, step, block, head of multi-token prediction, layer."""
_Choice = tuple[IntArray, bytes]
"""Assignments per expert, and a hash of which token chose which."""


def read_routing_traces(paths: Sequence[Path], root: Path, problems: list[str]) -> pl.DataFrame:
    """The ``expert_load`` table of all files; what could not be read goes into ``problems``."""
    passes: dict[_Place, list[_Choice]] = defaultdict(list)
    for path in paths:
        for place, choice in _read(path, path.relative_to(root).as_posix(), problems):
            passes[place].append(choice)
    num_experts = max((len(counts) for seen in passes.values() for counts, _ in seen), default=0)
    if passes and all(_is_recomputed(seen) for seen in passes.values()):
        problems.append("routing traces: every pass was there twice, as recomputation does; one of the two is counted")
        for place, seen in passes.items():
            passes[place] = _first_of_twins(seen)
    layers = _layer_numbers(passes)
    rows = [
        (place[0], place[1], microbatch, layers[place[2:]], np.pad(counts, (0, num_experts - len(counts))).tolist())
        for place, seen in passes.items()
        for microbatch, (counts, _) in enumerate(seen)
    ]
    columns = ["rank", "step", "microbatch", "layer", "counts"]
    known = pl.DataFrame(rows, schema={name: EXPERT_LOAD[name] for name in columns}, orient="row")
    absent = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in EXPERT_LOAD.items() if name not in columns]
    return known.with_columns(absent).select(list(EXPERT_LOAD))


def _read(path: Path, name: str, problems: list[str]) -> Iterator[tuple[_Place, _Choice]]:
    decoder = msgspec.json.Decoder(_Pass)
    bad = 0
    try:
        for line in lines(path):
            try:
                found = decoder.decode(line)
                choice = _choice(found.top_indices)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                bad += 1
                continue
            yield (found.rank, found.step, found.block, found.mtp_idx or 0, found.layer), choice
    except OSError as error:
        problems.append(f"{name} cannot be read to its end: {error.strerror or error}")
    if bad:
        problems.append(f"{name}: {bad} lines are cut or no routing records; their counts are missing")


def _choice(top_indices: list[list[int]]) -> _Choice:
    """Raises ValueError for rows of different lengths and for indices that no expert has."""
    chosen = np.array(top_indices, dtype=np.int64)
    if chosen.max(initial=0) >= MOST_EXPERTS:
        raise ValueError(f"there is no expert {chosen.max()}")
    return np.bincount(chosen.reshape(-1)), hashlib.blake2b(chosen.tobytes(), digest_size=16).digest()


def _layer_numbers(places: Mapping[_Place, list[_Choice]]) -> dict[tuple[str, int, int], int]:
    """Decoder layers keep their number; those of multi-token prediction follow the last of them."""
    keys = sorted({place[2:] for place in places})
    decoder = [layer for block, _, layer in keys if block == "decoder"]
    further = [key for key in keys if key[0] != "decoder"]
    first = max(decoder, default=-1) + 1
    numbers = {key: key[2] for key in keys if key[0] == "decoder"}
    return numbers | {key: first + index for index, key in enumerate(further)}


def _is_recomputed(seen: Sequence[_Choice]) -> bool:
    return all(times % 2 == 0 for times in Counter(chosen for _, chosen in seen).values())


def _first_of_twins(seen: Sequence[_Choice]) -> list[_Choice]:
    """Every other occurrence of each choice, in order."""
    times: Counter[bytes] = Counter()
    kept = []
    for counts, chosen in seen:
        times[chosen] += 1
        if times[chosen] % 2 == 1:
            kept.append((counts, chosen))
    return kept
