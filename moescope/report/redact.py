"""Host names and paths taken out of an analysis before it is written into a file that people pass on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from moescope.views.model import Analysis

T = TypeVar("T")
_DIRECTORIES = re.compile(r"(?:(?<=^)|(?<=[\s\"'=(:,\[]))(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][^/\\\s\"']+)+[/\\]")


def redact(analysis: Analysis) -> Analysis:
    """``analysis`` with hosts as ``host-1``, ``host-2``, … and no directories of paths, in every text it holds."""
    hide = hider(analysis)
    return dataclasses.replace(map_texts(analysis, hide), path=_last(analysis.path, hide))


def hider(analysis: Analysis) -> Callable[[str], str]:
    """What :func:`redact` does to one text."""
    return _hider(_hosts(analysis))


def _last(path: str, hide: Callable[[str], str]) -> str:
    return "…/" + hide(re.split(r"[/\\]", path.rstrip("/\\"))[-1])


def _hosts(analysis: Analysis) -> list[str]:
    names = [source.host for source in analysis.sources] + [clock.host for clock in analysis.clock]
    names += [rank.host for rank in analysis.ranks]
    declared = analysis.provenance.get("hosts")
    for entry in declared if isinstance(declared, list) else []:
        host = entry.get("host") if isinstance(entry, dict) else entry
        if isinstance(host, str):
            names.append(host)
    return [name for name in dict.fromkeys(names) if name]


def _hider(hosts: list[str]) -> Callable[[str], str]:
    aliases: dict[str, str] = {}
    for index, host in enumerate(hosts):
        aliases[host] = f"host-{index + 1}"
        short = host.partition(".")[0]
        if short and not short.isdecimal():
            aliases.setdefault(short, aliases[host])
    ordered = sorted((name for name in aliases if len(name) > 2), key=len, reverse=True)
    whole = "|".join(re.escape(name) for name in ordered)
    pattern = re.compile(rf"(?<![A-Za-z0-9])(?:{whole})(?![A-Za-z0-9])") if ordered else None

    def hide(content: str) -> str:
        if content in aliases:
            return aliases[content]
        content = _DIRECTORIES.sub("…/", content)
        return pattern.sub(lambda match: aliases[match.group()], content) if pattern else content

    return hide


def map_texts(value: T, change: Callable[[str], str]) -> T:
    """A copy of ``value`` with ``change`` applied to every string in its dataclasses, mappings and sequences."""
    changed: T = _map(value, change)
    return changed


def _map(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _map(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return type(value)(**fields)
    if isinstance(value, Mapping):
        return {change(key): _map(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map(item, change) for item in value)
    return value
