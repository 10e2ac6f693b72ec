"""Which moments of a host thread repeat forward work inside the backward pass (activation checkpointing).

The backward pass runs inside autograd's ``evaluate_function`` ranges. What runs there is recomputed when

* the innermost range of ours says so (``moescope::L3.mb0.experts.recompute``), or
* the innermost such range is that of a reentrant checkpoint, whose own work is to run the forward pass again, or
* a Python frame of the checkpoint's recomputation is open (traces with stacks), or
* it lies between the first and the last operation of that range that only a forward pass calls (a module's
  ``linear``, ``conv2d``, ``scaled_dot_product_attention``, ...: a backward pass calls their derivatives instead).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from moescope.align.context import enclosing
from moescope.align.ranges import IntArray

EVALUATE = "autograd::engine::evaluate_function"
REENTRANT = r"CheckpointFunctionBackward|CheckpointFunctionNVTEBackward"
RECOMPUTE_FRAME = r"\): recompute_fn$"
OURS = r"^moescope::.*\.recompute$"
FORWARD_ONLY = (
    r"^aten::(linear|conv[123]d|scaled_dot_product_attention|layer_norm|rms_norm|batch_norm|group_norm|dropout|relu_?"
    r"|max_pool2d|adaptive_avg_pool2d|embedding|cross_entropy_loss)$"
)
"""Operations that record their derivative's node and are themselves never a derivative."""


def recomputed(events: pl.DataFrame, moment_ns: IntArray, thread: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each moment of a thread is recomputation, [m]; a negative moment is not.

    ``events``: all events of the rank.
    """
    text = pl.col("name").cast(pl.String)
    host = events.lazy().filter(pl.col("category").is_in(["cpu_op", "annotation", "python"]))
    host = host.filter(text.str.contains(f"{EVALUATE}|{RECOMPUTE_FRAME}|{OURS}|{FORWARD_ONLY}"))
    marks = host.select("tid", "start_ns", "dur_ns", name=text).collect()
    if marks.is_empty() or len(moment_ns) == 0:
        return np.zeros(len(moment_ns), dtype=bool)
    said = marks.filter(pl.col("name").str.contains(f"{RECOMPUTE_FRAME}|{OURS}"))
    evaluate = marks.filter(pl.col("name").str.contains(EVALUATE, literal=True))
    inside = enclosing(evaluate, moment_ns, thread)
    reentrant = np.flatnonzero(evaluate["name"].str.contains(REENTRANT).to_numpy())
    again = (enclosing(said, moment_ns, thread) >= 0) | np.isin(inside, reentrant)
    either: npt.NDArray[np.bool_] = again | _between(marks, evaluate, moment_ns, inside)
    return either


def _between(
    marks: pl.DataFrame, evaluate: pl.DataFrame, moment_ns: IntArray, inside: IntArray
) -> npt.NDArray[np.bool_]:
    """Whether each moment lies between the first and the last forward-only operation of its innermost range."""
    forward = marks.filter(pl.col("name").str.contains(FORWARD_ONLY))
    if forward.is_empty() or evaluate.is_empty():
        return np.zeros(len(moment_ns), dtype=bool)
    start = forward["start_ns"].to_numpy()
    owner = enclosing(evaluate, start, forward["tid"].to_numpy())
    low = np.full(len(evaluate), np.iinfo(np.int64).max)
    high = np.full(len(evaluate), np.iinfo(np.int64).min)
    held = owner >= 0
    np.minimum.at(low, owner[held], start[held])
    np.maximum.at(high, owner[held], (start + forward["dur_ns"].to_numpy())[held])
    at = np.maximum(inside, 0)
    between: npt.NDArray[np.bool_] = (inside >= 0) & (moment_ns >= low[at]) & (moment_ns <= high[at])
    return between
