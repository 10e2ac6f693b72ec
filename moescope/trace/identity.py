"""Whose trace a file is: rank, world size, host, device and process groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from moescope.intake import INT64, MOST_RANKS, read_json
from moescope.trace.decimals import as_int
from moescope.trace.faults import Faults
from moescope.trace.model import ProcessGroup

_NAME_RULES = (
    r"rank[-_. ]?(\d+)",  # rank0_trace.json, rank-0.json.gz, trace_rank_0.json: torchtitan, Megatron, verl, vLLM
    r"worker[-_. ]?(\d+)",  # worker0.1623212756351.pt.trace.json: TensorBoard with worker_name
    r"(?:^|[-_.])TP-(\d+)(?!.*PP-[1-9])",  # 1756-TP-0-EP-0.trace.json.gz: SGLang, within the first pipeline stage
    r"(?:^|[-_.])(?:node|local)?r(\d+)(?=[-_.])",  # trace.r0.json
)
_ASCEND_RANK = re.compile(r"profiler_info_(\d+)\.json\Z")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file says about itself; None where it does not."""

    rank: int | None
    world_size: int | None
    host: str | None
    device: str
    groups: dict[str, ProcessGroup]


def identify(info: dict[str, Any], devices: list[int], faults: Faults) -> Identity:
    """Read the top-level metadata ``info`` of a file whose events ran on ``devices``."""
    distributed = info.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    for name in ("rank", "world_size"):
        if (number := as_int(distributed.get(name))) is not None and number > MOST_RANKS:
            faults.note("odd-metadata", f"distributedInfo.{name}", detail=f"{name} {str(distributed[name])[:40]}")
    return Identity(
        rank=_rank(distributed.get("rank")),
        world_size=_rank(distributed.get("world_size")),
        host=_host(info),
        device=_device(info, devices),
        groups=_groups(distributed.get("pg_config")),
    )


def rank_from_name(name: str, rank_regex: re.Pattern[str] | None) -> int | None:
    """The rank in a file's path: by the user's expression if given, else by the built-in rules."""
    if rank_regex is not None:
        match = rank_regex.search(name)
        return _rank(next((g for g in match.groups() if g), None)) if match else None
    stem = PurePath(name).name
    for rule in _NAME_RULES:
        if match := re.search(rule, stem, re.IGNORECASE):
            return _rank(match[1])
    return None


def rank_beside(path: Path) -> int | None:
    """The rank that Ascend's profiler notes beside its output, in the name of ``profiler_info_{rank}.json``."""
    if path.name.removesuffix(".gz") != "trace_view.json":
        return None
    for folder in (path.parent, path.parent.parent):
        names = [match for file in folder.glob("profiler_info_*.json") if (match := _ASCEND_RANK.match(file.name))]
        if len(names) == 1:
            return _rank(names[0][1])
    return None


def looks_like_trace(name: str) -> bool:
    """Whether a file's name promises a trace, so that one without events is worth a word."""
    return re.search(r"trace|rank|\.pt\.", PurePath(name).name, re.IGNORECASE) is not None


def worker_of(name: str) -> str:
    """The part of a TensorBoard file name that names the process: ``host_pid`` of ``host_pid.1694.pt.trace.json``."""
    return re.sub(r"(\.\d+)?(\.pt)?(\.trace)?\.json(\.gz)?\Z", "", PurePath(name).name)


def usable(info: dict[str, Any], base_ns: int, faults: Faults) -> dict[str, Any]:
    """``info`` with ``base_ns`` as its base time and without figures of devices that fit no column."""
    found = dict(info)
    if "baseTimeNanoseconds" in found:
        found["baseTimeNanoseconds"] = base_ns
    if isinstance(entries := found.get("deviceProperties"), list):
        found["deviceProperties"] = [_device_figures(entry, faults) for entry in entries]
    return found


def _device_figures(entry: Any, faults: Faults) -> Any:
    if not isinstance(entry, dict):
        return entry
    odd = [key for key, value in entry.items() if isinstance(value, int) and value not in INT64]
    if odd:
        faults.note("odd-metadata", f"deviceProperties.{odd[0]}", len(odd))
    return {key: value for key, value in entry.items() if key not in odd}


def _rank(value: object) -> int | None:
    """A rank or number of ranks; None for what is none, or more than any job has."""
    number = as_int(value)
    return number if number is not None and 0 <= number <= MOST_RANKS else None


def _host(info: dict[str, Any]) -> str | None:
    for key in ("host_name", "hostname", "host"):
        if isinstance(info.get(key), str) and info[key]:
            return str(info[key])
    return None


def _device(info: dict[str, Any], devices: list[int]) -> str:
    properties = info.get("deviceProperties")
    names = {
        as_int(entry.get("id", place)): str(entry["name"])
        for place, entry in enumerate(properties if isinstance(properties, list) else [])
        if isinstance(entry, dict) and "name" in entry
    }
    for device in devices:
        if device in names:
            return names[device]
    if names:
        return next(iter(names.values()))
    return "GPU" if devices else "CPU"


def _groups(config: object) -> dict[str, ProcessGroup]:
    if isinstance(config, str):
        try:
            config, _ = read_json(config)
        except ValueError:
            return {}
    groups = {}
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and "pg_name" in entry:
            name = str(entry["pg_name"])
            groups[name] = ProcessGroup(name, str(entry.get("pg_desc", "")), _ranks(entry.get("ranks")))
    return groups


def _ranks(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = re.findall(r"\d+", value)
    if not isinstance(value, list):
        return ()
    ranks = [_rank(item) for item in value]
    return () if None in ranks else tuple(rank for rank in ranks if rank is not None)
