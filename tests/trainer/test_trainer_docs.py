"""docs/train.md lists every setting with its default and meaning, as the source has them.

``MOESCOPE_UPDATE_DOCS=1 pytest tests/trainer/test_trainer_docs.py`` writes the table.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
from itertools import pairwise
from pathlib import Path

from moescope.trainer import config
from moescope.trainer.presets import PRESETS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "train.md"
TABLE = re.compile(r"(<!-- settings -->\n)(.*?)(<!-- end of settings -->)", re.DOTALL)


def docstrings_of(kind: type) -> dict[str, str]:
    """The text under each field of a dataclass."""
    tree = ast.parse(Path(inspect.getfile(kind)).read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def settings_table() -> str:
    lines = []
    for section in dataclasses.fields(config.Config):
        default = getattr(config.Config(), section.name)
        if not dataclasses.is_dataclass(default):
            continue
        meanings = docstrings_of(type(default))
        lines += [f"\n### {section.name}\n", "| key | default | meaning |", "|---|---|---|"]
        for field in dataclasses.fields(default):
            value = getattr(default, field.name)
            shown = "(none)" if value == () else str(value).lower() if isinstance(value, bool) else str(value)
            lines.append(f"| `{field.name}` | {shown} | {meanings[field.name]} |")
    return "\n".join(lines) + "\n\n"


def test_the_page_lists_every_setting() -> None:
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("MOESCOPE_UPDATE_DOCS"):
        text = TABLE.sub(lambda match: match[1] + settings_table() + match[3], text)
        PAGE.write_text(text, encoding="utf-8")
    shown = TABLE.search(text)
    assert shown is not None
    assert shown[2] == settings_table()


def test_the_page_names_every_preset() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [preset for preset in PRESETS if f"`{preset}`" not in text] == []
