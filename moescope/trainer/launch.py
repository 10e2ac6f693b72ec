"""Starting the ranks of a training run, and what every rank does."""

from __future__ import annotations

import signal
import time

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from moescope.launch import launch_ranks, quiet, say, say_nothing, under_torchrun
from moescope.trainer.loop import Job, train
from moescope.trainer.mesh import make_mesh, start_process_group

KEPT = "What was recorded until then is in the run directory; --resume continues from its last checkpoint, if any."


LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket",
    "remote process exited",
)
LOST_PEER_WAIT_S = 5.0
"""A rank that only lost a peer waits for the launcher to find that one, so that the rank named is the one at fault."""


@record
def run_rank(job: Job) -> None:
    """What every rank does: join, train, leave."""
    quiet()
    signal.signal(signal.SIGTERM, _leave)
    device = start_process_group()
    try:
        world_size = dist.get_world_size()
        job.config.check_world(world_size)
        parallel = job.config.parallel
        mesh = make_mesh(job.config.ep_size(world_size), parallel.ep_layout, device, parallel.tp_size)
        train(job, mesh, say if mesh.rank == 0 else say_nothing)
    except RuntimeError as error:
        if any(sign in str(error) for sign in LOST_PEER):
            time.sleep(LOST_PEER_WAIT_S)
        raise
    finally:
        dist.destroy_process_group()


def _leave(*_: object) -> None:
    """End the training from wherever it is, so that what was observed is written first."""
    raise KeyboardInterrupt


def launch(job: Job, ranks: int) -> None:
    """Train on ``ranks`` local ranks, or as one of torchrun's; a rank that fails ends the others and is named."""
    if not under_torchrun():
        job.config.check_world(ranks)
    launch_ranks(run_rank, job, ranks, preload=["moescope.trainer.loop", "torch._dynamo"], left_behind=KEPT)
