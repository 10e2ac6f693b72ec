"""The ranks and how they are grouped: expert groups share one set of experts, replica groups hold the same experts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Group:
    """A process group as this rank sees it; ``handle`` is None where the rank is alone in it."""

    ranks: tuple[int, ...]
    index: int
    """This rank's position in ``ranks``."""
    handle: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def name(self) -> str:
        """The name that traces and telemetry carry."""
        return self.handle.group_name if self.handle is not None else f"alone{self.ranks[0]}"


@dataclass(frozen=True)
class Mesh:
    """This rank's place. Sequences are split over ``world``, experts over ``expert``, heads over ``tensor``."""

    rank: int
    device: torch.device
    world: Group
    expert: Group
    """Ranks that together hold every expert once."""
    replica: Group
    """Ranks that hold the same experts as this one."""
    tensor: Group
    """Ranks that share the attention heads."""
    tensor_replica: Group
    """Ranks that hold the same attention heads as this one."""
    ep_groups: tuple[tuple[int, ...], ...]

    @property
    def ep_index(self) -> int:
        """Which of ``ep_groups`` this rank belongs to."""
        return self.ep_groups.index(self.expert.ranks)


def expert_groups(world_size: int, ep_size: int, layout: str) -> list[tuple[int, ...]]:
    """The ranks of every expert group: ``contiguous`` (0 1 | 2 3) or ``strided`` (0 2 | 1 3)."""
    num_groups = world_size // ep_size
    if layout == "contiguous":
        return [tuple(range(g * ep_size, (g + 1) * ep_size)) for g in range(num_groups)]
    return [tuple(range(g, world_size, num_groups)) for g in range(num_groups)]


def single_mesh(device: torch.device | None = None) -> Mesh:
    """One rank alone, without a process group."""
    alone = Group((0,), 0, None)
    return Mesh(0, device or torch.device("cpu"), alone, alone, alone, alone, alone, ((0,),))


def make_mesh(ep_size: int, layout: str, device: torch.device, tp_size: int = 1) -> Mesh:
    """Make the groups; every rank of the initialised default group calls it with the same arguments."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ep_groups = expert_groups(world_size, ep_size, layout)
    replicas = [tuple(group[member] for group in ep_groups) for member in range(ep_size)]
    world = Group(tuple(range(world_size)), rank, dist.group.WORLD if world_size > 1 else None)
    tp_groups = expert_groups(world_size, tp_size, "contiguous")
    tp_replicas = [tuple(group[member] for group in tp_groups) for member in range(tp_size)]
    return Mesh(
        rank,
        device,
        world,
        _make_groups(ep_groups, rank, "expert"),
        _make_groups(replicas, rank, "replica"),
        _make_groups(tp_groups, rank, "tensor"),
        _make_groups(tp_replicas, rank, "tensor_replica") if tp_size > 1 else world,
        tuple(ep_groups),
    )


def _make_groups(groups: Sequence[tuple[int, ...]], rank: int, what: str) -> Group:
    """Make all of ``groups`` (a collective call) and return the one with this rank in it."""
    own: Group | None = None
    for i, ranks in enumerate(groups):
        handle = None
        if len(ranks) > 1:
            handle = dist.new_group(list(ranks), timeout=TIMEOUT, group_desc=f"{what}{i}")
        if rank in ranks:
            own = Group(ranks, ranks.index(rank), handle)
    if own is None:
        raise ValueError(f"rank {rank} is in no {what} group")
    return own


def start_process_group() -> torch.device:
    """Join the ranks that the launcher started (RANK, WORLD_SIZE, LOCAL_RANK); returns this rank's device.

    NCCL where every local rank has a GPU of its own, else gloo on the CPU, with the cores shared out so that the
    ranks of one host do not fight over them.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
        return device
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_ranks))
    dist.init_process_group("gloo", timeout=TIMEOUT)
    return torch.device("cpu")
