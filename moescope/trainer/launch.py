"""Starting the ranks: local ones through torch's elastic launcher, or joining those that torchrun started."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from moescope.errors import ExitCode, MoescopeError
from moescope.trainer.loop import Job, train
from moescope.trainer.mesh import make_mesh, start_process_group

KEPT = "what was recorded until then is in the run directory; --resume continues from its last checkpoint, if any"


LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket",
    "remote process exited",
)
LOST_PEER_WAIT_S = 5.0
"""A rank that only lost a peer waits for the launcher to find that one, so that the rank named is the one at fault."""


def under_torchrun() -> bool:
    """Whether a launcher has started this process as one of its ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


@record
def run_rank(job: Job) -> None:
    """What every rank does: join, train, leave."""
    _quiet()
    signal.signal(signal.SIGTERM, _leave)
    device = start_process_group()
    try:
        world_size = dist.get_world_size()
        job.config.check_world(world_size)
        parallel = job.config.parallel
        mesh = make_mesh(job.config.ep_size(world_size), parallel.ep_layout, device, parallel.tp_size)
        train(job, mesh, _say if mesh.rank == 0 else _say_nothing)
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
    if under_torchrun():
        run_rank(job)
        return
    job.config.check_world(ranks)
    _quiet()
    with tempfile.TemporaryDirectory(prefix="moescope-") as logs:
        launcher = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=f"moescope-{os.getpid()}-{time.time_ns()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            start_method=_start_method(),
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(launcher, run_rank)(job)
        except ChildFailedError as error:
            raise _explain(error) from error
        except SignalException as stop:  # the launcher has stopped the ranks
            if stop.sigval == signal.SIGINT:
                raise KeyboardInterrupt from stop
            raise MoescopeError(
                f"stopped by {stop.sigval.name}", hint=KEPT, code="stopped", exit_code=ExitCode.INTERRUPTED
            ) from stop


def _start_method() -> str:
    """Without GPUs, ranks are forked from a server that has imported torch once; that saves seconds per rank."""
    if torch.cuda.is_available():
        return "spawn"
    multiprocessing.set_forkserver_preload(["moescope.trainer.loop", "torch._dynamo"])
    return "forkserver"


def _quiet() -> None:
    """Keep torch's launcher and profiler from talking: what goes wrong is told once, by :func:`_explain`."""
    if os.environ.get("MOESCOPE_DEBUG", "") in ("", "0"):
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        for name in ("torch.distributed.elastic", "torch.multiprocessing"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _explain(error: ChildFailedError) -> MoescopeError:
    rank, failure = error.get_first_failure()
    message = failure.message["message"] if isinstance(failure.message, dict) else str(failure.message)
    return MoescopeError(
        f"rank {rank} failed and the others were stopped: {message.strip()}",
        hint=KEPT,
        code="rank-failed",
        exit_code=ExitCode.INTERNAL,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _say_nothing(line: str) -> None:
    del line
