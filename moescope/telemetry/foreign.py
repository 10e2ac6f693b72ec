"""Recordings of other tools in a folder, found by what they hold, whatever they are called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from moescope.intake import list_files

_SUFFIXES = (".jsonl", ".log", ".json", ".txt", "")
_HEAD_BYTES = 2048
_ROUTING = re.compile(rb'\{\s*"step":\s*\d+,.*"layer":\s*\d+,.*"num_tokens":\s*\d+,.*"topk":\s*\d+', re.DOTALL)
_INSPECTOR = re.compile(rb'\{\s*"header":\s*\{.*"inspector_output_format_version"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ForeignFiles:
    """What was found, sorted by path."""

    routing: list[Path] = field(default_factory=list)
    """Routing traces of Megatron-Core (``--moe-routing-trace-path``)."""
    inspector: list[Path] = field(default_factory=list)
    """JSON of NCCL's inspector plugin."""

    def __len__(self) -> int:
        return len(self.routing) + len(self.inspector)


def find_foreign(root: Path) -> ForeignFiles:
    """Look at the first bytes of every file below ``root`` that may be one; hidden folders are left out."""
    found = ForeignFiles()
    for path in list_files(root).files:
        if not path.name.startswith(".") and path.suffix.lower() in _SUFFIXES:
            _sort_in(path, found)
    return found


def _sort_in(path: Path, found: ForeignFiles) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return  # whoever needs it says so
    if _ROUTING.match(head):
        found.routing.append(path)
    elif _INSPECTOR.match(head):
        found.inspector.append(path)
