"""run.json for loops that do not write their own: what a later reader must know about where the numbers come from."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from moescope_hooks.writer import write_atomically

RUN_SCHEMA = "moescope.run/1"


def rank_facts(rank: int) -> dict[str, Any]:
    """Host, process and device of this rank."""
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        name, memory_bytes = properties.name, int(properties.total_memory)
    else:
        name, memory_bytes = "CPU", None
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": name,
        "memory_bytes": memory_bytes,
    }


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {"python": platform.python_version(), "torch": str(torch.__version__)}


def describe_run(out: Path, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The part of run.json that every observed run has; ``ranks`` are :func:`rank_facts` of each."""
    hosts: dict[str, list[int]] = {}
    for facts in ranks:
        hosts.setdefault(facts["host"], []).append(facts["rank"])
    return {
        "schema": RUN_SCHEMA,
        "basis": "measured",
        "name": out.resolve().name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.orig_argv,
        "git_commit": None,
        "versions": versions(),
        "hosts": [{"host": host, "ranks": members} for host, members in hosts.items()],
        "devices": [
            {"rank": f["rank"], "name": f["device"], "memory_bytes": f["memory_bytes"], "pid": f["pid"]} for f in ranks
        ],
        "model": {},
        "parallel": {"world_size": len(ranks)},
        "train": {},
        "data": {"files": []},
        "seeds": {},
        "controls": [],
        "result": {},
    }


def write_run(out: Path, run: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all."""
    text = json.dumps(dict(run), indent=2) + "\n"
    write_atomically(out / "run.json", lambda path: path.write_text(text, encoding="utf-8"))
