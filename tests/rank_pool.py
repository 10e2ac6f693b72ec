"""Four processes joined by gloo, started once per test session, that run functions for the tests."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD_SIZE = 4


class RankPool:
    """``run(function, *args)`` calls ``function(*args)`` on every rank and returns the results in rank order."""

    def __init__(self, store: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["moescope.trainer.loop", "torch._dynamo"])
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(WORLD_SIZE):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(store), theirs), daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """Call a module-level ``function`` on every rank; a rank's exception fails the caller."""
        for pipe in self._pipes:
            pipe.send((function, args))
        results = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout_s):
                raise TimeoutError(f"rank {rank} did not answer within {timeout_s:.0f} s")
            fine, result = pipe.recv()
            if not fine:
                raise RuntimeError(f"rank {rank}: {result}")
            results.append(result)
        return results

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()


def _serve(rank: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, WORLD_SIZE), rank=rank, world_size=WORLD_SIZE)
    while (job := pipe.recv()) is not None:
        function, args = job
        try:
            pipe.send((True, function(*args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
