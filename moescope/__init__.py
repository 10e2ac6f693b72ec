"""moescope: where the step of a mixture-of-experts training run goes.

``moescope.open(path)`` gives the analysis of a folder of traces as dataclasses and polars frames.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescope.run import Run

__version__ = "0.1.0"

if "numpy" not in sys.modules:
    # The threads that numpy's OpenBLAS starts, one for each further processor, look for work for 2**26 ticks before
    # they sleep: a tenth of a second in which the reader needs those processors. 2**16 do from call to call.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")


def open(
    path: str | os.PathLike[str],
    *,
    hosts: Sequence[Sequence[int]] | None = None,
    rank_regex: str | None = None,
    workers: int | None = None,
    cache: bool = True,
    baseline: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Run:
    """Open a run directory, or any folder of Kineto traces; it is read and analysed when first asked for.

    ``hosts``: ranks that share a host's clock, where the traces do not say, for example ``[range(4), range(4, 8)]``.
    ``rank_regex``: one group that captures the rank from a file's path, where the trace lacks it. ``workers``:
    how many read at a time, threads or processes. ``cache``: keep what was read under ``path/.moescope``.
    ``baseline``: a file of ``moescope baseline`` to hold the run against. ``progress``: called with ``(done, total,
    label)``.
    Errors are :class:`moescope.errors.MoescopeError`.
    """
    from moescope.run import Run  # noqa: PLC0415 - `import moescope` stays light

    return Run(
        path, hosts=hosts, rank_regex=rank_regex, workers=workers, cache=cache, baseline=baseline, progress=progress
    )
