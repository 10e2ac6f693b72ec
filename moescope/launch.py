"""Local ranks through torch's elastic launcher: started together, one that fails ends the others and is named."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from moescope.errors import DataMissingError, ExitCode, InputUnreadableError, MoescopeError
from moescope.signals import signals_kept

_TAKEN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that torch's launcher handles, and does not give back."""


def under_torchrun() -> bool:
    """Whether a launcher has started this process as one of its ranks."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launch_ranks(
    run_rank: Callable[..., None], job: Any, ranks: int, *, preload: Sequence[str], left_behind: str
) -> None:
    """Call ``run_rank(job)`` on ``ranks`` local ranks, or here where a launcher has started this process as a rank.

    ``preload``: modules that the server imports once from which ranks are forked. ``left_behind``: what a failure says
    of what there is by then.
    """
    if under_torchrun():
        run_rank(job)
        return
    quiet()
    with tempfile.TemporaryDirectory(prefix="moescope-") as logs:
        launcher = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=f"moescope-{os.getpid()}-{time.time_ns()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            start_method=_start_method(preload),
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            with signals_kept(*_TAKEN):
                elastic_launch(launcher, run_rank)(job)
        except ChildFailedError as error:
            raise _explain(error, left_behind) from error
        except SignalException as stop:  # the launcher has stopped the ranks
            if stop.sigval == signal.SIGINT:
                raise KeyboardInterrupt from stop
            raise MoescopeError(
                f"stopped by {stop.sigval.name}", hint=left_behind, code="stopped", exit_code=ExitCode.INTERRUPTED
            ) from stop


def _start_method(preload: Sequence[str]) -> str:
    """Without GPUs, ranks are forked from a server that has imported torch once; that saves seconds per rank."""
    if torch.cuda.is_available():
        return "spawn"
    multiprocessing.set_forkserver_preload(list(preload))
    return "forkserver"


def quiet() -> None:
    """Keep torch's launcher and profiler from talking: what goes wrong is told once, by the error that is raised."""
    if os.environ.get("MOESCOPE_DEBUG", "") in ("", "0"):
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        for name in ("torch.distributed.elastic", "torch.multiprocessing"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _explain(error: ChildFailedError, left_behind: str) -> MoescopeError:
    rank, failure = error.get_first_failure()
    message = failure.message["message"] if isinstance(failure.message, dict) else str(failure.message)
    return MoescopeError(
        f"rank {rank} failed and the others were stopped: {message.strip()}",
        hint=f"{left_behind} MOESCOPE_DEBUG=1 shows the launcher's own log.",
        code="rank-failed",
        exit_code=_exit_code(message),
    )


def _exit_code(message: str) -> ExitCode:
    """The exit code of the error that ended a rank, whose name its message begins with."""
    return _EXIT_CODES.get(message.strip().partition(":")[0], ExitCode.INTERNAL)


_EXIT_CODES = {
    "MoescopeError": ExitCode.USAGE,
    "ConfigError": ExitCode.USAGE,
    InputUnreadableError.__name__: ExitCode.UNREADABLE,
    DataMissingError.__name__: ExitCode.DATA_MISSING,
}


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def say_nothing(line: str) -> None:
    """Progress of the ranks beside the first."""
    del line
