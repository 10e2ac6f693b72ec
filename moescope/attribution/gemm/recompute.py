"""Which moments of a host thread repeat forward work inside the backward pass (activation checkpointing).

The backward pass runs inside autograd's ``evaluate_function`` ranges. What runs there is recomputed when

* the innermost range of ours says so (``moescope::L3.mb0.experts.recompute``), or
* the innermost such range is that of a reentrant checkpoint, whose own work is to run the forward pass again, or
* a Python frame of the checkpoint's recomputation is open (traces with stacks), or
* it precedes an operation in that range that only a forward pass calls (``linear``, ``silu``, ``layer_norm``, ...: a
  backward pass calls their derivatives instead). Autograd's own nodes, named ``MmBackward0`` and the like, fetch what
  the forward pass saved before they compute, so there all that precedes the last such operation is recomputed, and
  ``matmul`` counts as one. Functions written in Python may call anything first, and ``matmul`` too; there only what
  lies between the first and the last such operation counts.
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
    r"|silu_?|gelu_?|softmax|log_softmax|max_pool2d|adaptive_avg_pool2d|embedding|cross_entropy_loss)$"
)
"""Operations that record their derivative's node and are themselves no part of a derivative."""
FORWARD_ONLY_IN_NODES = r"^aten::matmul$"
"""The same, but for autograd functions written in Python."""
BUILT_IN_NODE = r"Backward\d+$"


def recomputed(events: pl.DataFrame, moment_ns: IntArray, thread: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each moment of a thread is recomputation, [m]; a negative moment is not.

    ``events``: all events of the rank.
    """
    text = pl.col("name").cast(pl.String)
    host = events.lazy().filter(pl.col("category").is_in(["cpu_op", "annotation", "python"]))
    host = host.filter(text.str.contains(f"{EVALUATE}|{RECOMPUTE_FRAME}|{OURS}|{FORWARD_ONLY}|{FORWARD_ONLY_IN_NODES}"))
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
    """Whether each moment lies in the part of its innermost range that forward-only operations mark, [m]."""
    forward = marks.filter(pl.col("name").str.contains(f"{FORWARD_ONLY}|{FORWARD_ONLY_IN_NODES}"))
    if forward.is_empty() or evaluate.is_empty():
        return np.zeros(len(moment_ns), dtype=bool)
    start = forward["start_ns"].to_numpy()
    owner = enclosing(evaluate, start, forward["tid"].to_numpy())
    built_in = evaluate["name"].str.contains(BUILT_IN_NODE).to_numpy()
    sure = ~forward["name"].str.contains(FORWARD_ONLY_IN_NODES).to_numpy()
    held = (owner >= 0) & (sure | built_in[np.maximum(owner, 0)])
    low = np.full(len(evaluate), np.iinfo(np.int64).max)
    high = np.full(len(evaluate), np.iinfo(np.int64).min)
    np.minimum.at(low, owner[held], start[held])
    np.maximum.at(high, owner[held], (start + forward["dur_ns"].to_numpy())[held])
    low = np.where(built_in, evaluate["start_ns"].to_numpy(), low)
    at = np.maximum(inside, 0)
    between: npt.NDArray[np.bool_] = (inside >= 0) & (moment_ns >= low[at]) & (moment_ns <= high[at])
    return between
