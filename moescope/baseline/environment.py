"""What a baseline was measured on: hosts, devices, driver, libraries, topology, and the settings that steer them."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from moescope_hooks.runinfo import rank_facts, versions

SETTINGS = ("NCCL_", "RCCL_", "GLOO_", "CUDA_", "HIP_", "ROCR_", "UCX_", "FI_", "OMP_NUM_THREADS", "PYTORCH_")
"""Environment variables that change what is measured begin with one of these."""
PROBE_SECONDS = 60


def describe_ranks(rank: int) -> list[dict[str, Any]]:
    """Host, process and device of every rank. A collective call."""
    own = rank_facts(rank) | {"local_rank": int(os.environ.get("LOCAL_RANK", "0"))}
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return [own]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def describe_hosts() -> list[dict[str, Any]]:
    """Every host once, as its first local rank sees it. A collective call."""
    own = describe_host() if os.environ.get("LOCAL_RANK", "0") == "0" else None
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return [own or describe_host()]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return [one for one in every if one is not None]


def describe_host() -> dict[str, Any]:
    """This host. Whatever a missing tool would tell is null."""
    on_gpu = torch.cuda.is_available()
    return {
        "host": socket.gethostname(),
        "kernel": platform.release(),
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "numa_nodes": _numa_nodes(),
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if on_gpu else [],
        "driver": _run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "versions": versions() | _library_versions(),
        "topology": _run("nvidia-smi", "topo", "-m") or _run("rocm-smi", "--showtopo"),
        "dcgm_level_1": _run("dcgmi", "diag", "-r", "1"),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


def _library_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.version.hip:
        found["hip"] = torch.version.hip
    if torch.cuda.is_available() and dist.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return found


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _numa_nodes() -> dict[str, str]:
    """CPUs of every NUMA node, by the node's name; empty where the system does not say."""
    lists = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return {path.parent.name: path.read_text(encoding="utf-8").strip() for path in lists}


def _run(*command: str) -> str | None:
    """What a tool prints; None where it is missing, fails or hangs."""
    return run_tool(command) if shutil.which(command[0]) else None


def run_tool(command: Sequence[str]) -> str | None:
    """Standard output of ``command``; None where it fails or takes longer than PROBE_SECONDS."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
