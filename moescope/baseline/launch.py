"""Starting the ranks of a baseline: local ones through torch's elastic launcher, or as one of torchrun's."""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import time

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from moescope.baseline.measure import Job, run_rank
from moescope.errors import ExitCode, MoescopeError


def launch(job: Job, ranks: int) -> None:
    """Measure on ``ranks`` local ranks; under torchrun, as the rank that this process is."""
    if all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        run_rank(job)
        return
    if os.environ.get("MOESCOPE_DEBUG", "") in ("", "0"):
        for name in ("torch.distributed.elastic", "torch.multiprocessing"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="moescope-") as logs:
        launcher = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=f"moescope-baseline-{os.getpid()}-{time.time_ns()}",
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
        except SignalException as error:  # the launcher's form of Ctrl-C; it has stopped the ranks
            raise KeyboardInterrupt from error


def _start_method() -> str:
    """Without GPUs, ranks are forked from a server that has imported torch once."""
    if torch.cuda.is_available():
        return "spawn"
    multiprocessing.set_forkserver_preload(["moescope.baseline.measure"])
    return "forkserver"


def _explain(error: ChildFailedError) -> MoescopeError:
    rank, failure = error.get_first_failure()
    message = failure.message["message"] if isinstance(failure.message, dict) else str(failure.message)
    return MoescopeError(
        f"rank {rank} failed and the others were stopped: {message.strip()}",
        hint="Set MOESCOPE_DEBUG=1 for the launcher's own log. Nothing was written.",
        code="rank-failed",
        exit_code=ExitCode.INTERNAL,
    )
