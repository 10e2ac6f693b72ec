"""Starting the ranks of a baseline: local ones, or as one of torchrun's."""

from __future__ import annotations

from moescope.baseline.measure import Job, run_rank
from moescope.launch import launch_ranks


def launch(job: Job, ranks: int) -> None:
    """Measure on ``ranks`` local ranks; under torchrun, as the rank that this process is."""
    launch_ranks(run_rank, job, ranks, preload=["moescope.baseline.measure"], left_behind="Nothing was written.")
