"""The table of names: an event's category and kind, what a collective does. Data in ``patterns.toml``, read here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from moescope.errors import MoescopeError
from moescope.trace.model import CATEGORIES, COLLECTIVES, KINDS

_UNCLEAR = re.compile(r"\\[xuUN0-9]|\(\?")
_ESCAPE_OR_CLASS = re.compile(r"\\.|\[[^\]]*\]")
_GROUP = re.compile(r"\([^()]*\)")
_OPTIONAL = re.compile(r".(?:[?*]|\{[^}]*\})")
_NOT_LITERAL = re.compile(r"[^a-z0-9_: -]+")
_ESCAPE_OR_CAPITALS = re.compile(r"(\\.)|([A-Z]+)")
_NOT_A_LETTER = re.compile("[^a-z0-9]")
_SECTIONS = {"kernel", "range", "collective", "process", "categories"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A regular expression, in lower case, and what a name is in which it is found."""

    expression: str
    kind: str
    literal: str
    """Part of every name that matches: looking for it first spares most names the expression, and most expressions
    that they are compiled."""

    def fits(self, name: str) -> bool:
        """Whether ``name``, in lower case, matches."""
        return self.literal in name and _compiled(self.expression).search(name) is not None


ProcessRule = tuple[str, str | None, str]
"""Expression for the process name, for the event name or None for all, category."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Ordered rules, for names in lower case; the first that matches decides."""

    kernel_rules: tuple[Rule, ...]
    range_rules: tuple[Rule, ...]
    collective_rules: tuple[Rule, ...]
    process_rules: tuple[ProcessRule, ...]
    categories: dict[str, str]
    text: str
    """The source of the rules, part of the store's key."""
    _kernels: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Kinds found already: the ranks of a run have the same kernels."""
    _collectives: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def kernel_kind(self, name: str) -> str:
        """Kind of a kernel called ``name``; ``compute`` when no rule matches."""
        if name not in self._kernels:
            self._kernels[name] = _kind(self.kernel_rules, name.lower()) or "compute"
        return self._kernels[name]

    def range_kind(self, name: str) -> str | None:
        """Kind of a range on the CPU, None when it belongs to no communication backend."""
        return _kind(self.range_rules, name.lower())

    def collective_kind(self, name: str) -> str:
        """What the collective or kernel called ``name`` does, one of ``COLLECTIVES``."""
        if name not in self._collectives:
            letters = _NOT_A_LETTER.sub("", name.lower())
            self._collectives[name] = _kind(self.collective_rules, letters) or "other"
        return self._collectives[name]

    def process_category(self, process: str, name: str) -> str | None:
        """Category of an event called ``name`` of a process called ``process``, None where no rule fits."""
        return next(
            (
                category
                for of_process, of_event, category in self.process_rules
                if _compiled(of_process).search(process.lower())
                and (of_event is None or _compiled(of_event).search(name.lower()))
            ),
            None,
        )

    def category(self, recorded: str) -> str:
        """The events table's category for a category as recorded."""
        return self.categories.get(recorded, "other")


def _kind(rules: Sequence[Rule], name: str) -> str | None:
    return next((rule.kind for rule in rules if rule.fits(name)), None)


def load_patterns(extra: Path | None = None) -> Patterns:
    """The built-in table, preceded by the user's file ``extra``."""
    text, builtin = _built_in()
    texts, tables = [text], [builtin]
    if extra is not None:
        texts.insert(0, _read(extra))
        tables.insert(0, _parse(texts[0], str(extra)))
    categories: dict[str, str] = {}
    for table in reversed(tables):
        categories.update({name: category for category, names in table.get("categories", {}).items() for name in names})
    return Patterns(
        kernel_rules=_all_rules(tables, "kernel", KINDS),
        range_rules=_all_rules(tables, "range", KINDS),
        collective_rules=_all_rules(tables, "collective", COLLECTIVES),
        process_rules=tuple(rule for table in tables for rule in _process_rules(table, check=table is not builtin)),
        categories=categories,
        text="\n".join(texts),
    )


@cache
def _built_in() -> tuple[str, dict[str, Any]]:
    text = Path(__file__).with_name("patterns.toml").read_text(encoding="utf-8")
    return text, _parse(text, "patterns.toml")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MoescopeError(f"cannot read the pattern table {path}: {error}", code="bad-patterns") from error


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MoescopeError(f"{origin} is not valid TOML: {error}", code="bad-patterns") from error
    categories = table.get("categories", {})
    if not isinstance(categories, dict) or not all(map(_are_texts, categories.values())):
        raise MoescopeError(f"{origin}: [categories] needs a list of names for each category", code="bad-patterns")
    for section in _SECTIONS - {"categories"}:
        entries = table.get(section, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise MoescopeError(f"{origin}: {section} must be tables, each headed [[{section}]]", code="bad-patterns")
    unknown = (set(table) - _SECTIONS) | (set(categories) - set(CATEGORIES))
    if unknown:
        raise MoescopeError(
            f"{origin}: unknown keys {sorted(unknown)}",
            hint="a table has [[kernel]], [[range]], [[collective]], [[process]], [categories]; see docs/reading.md",
            code="bad-patterns",
        )
    return table


def _all_rules(tables: Sequence[dict[str, Any]], section: str, kinds: Collection[str]) -> tuple[Rule, ...]:
    _, builtin = _built_in()
    return tuple(rule for table in tables for rule in _rules(table, section, kinds, check=table is not builtin))


def _rules(table: dict[str, Any], section: str, kinds: Collection[str], *, check: bool) -> list[Rule]:
    rules = []
    for entry in table.get(section, []):
        if entry.get("kind") not in kinds or not _are_texts(entry.get("match")):
            raise MoescopeError(
                f"a [[{section}]] entry needs kind (one of {', '.join(kinds)}) and match (a list), got {entry}",
                code="bad-patterns",
            )
        for text in entry["match"]:
            if check:
                _compile(text, section)
            expression = _in_lower_case(text)
            rules.append(Rule(expression, entry["kind"], literal_of(expression)))
    return rules


def _process_rules(table: dict[str, Any], *, check: bool) -> list[ProcessRule]:
    rules: list[ProcessRule] = []
    for entry in table.get("process", []):
        names = entry.get("name", [])
        if entry.get("category") not in CATEGORIES or not _are_texts([entry.get("process")]) or not _are_texts(names):
            raise MoescopeError(
                f"a [[process]] entry needs category (one of {', '.join(CATEGORIES)}), process, no name or a list of "
                f"them, got {entry}",
                code="bad-patterns",
            )
        for text in (entry["process"], *names) if check else ():
            _compile(text, "process")
        process = _in_lower_case(entry["process"])
        rules += [(process, name, entry["category"]) for name in map(_in_lower_case, names)]
        rules += [] if names else [(process, None, entry["category"])]
    return rules


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


@cache
def _in_lower_case(text: str) -> str:
    # Much faster than ignoring the case: a plain word can then be searched for as a whole.
    return _ESCAPE_OR_CAPITALS.sub(lambda match: match[1] or match[2].lower(), text)


def _compile(text: str, section: str) -> re.Pattern[str]:
    try:
        return _compiled(_in_lower_case(text))
    except re.error as error:
        raise MoescopeError(
            f"[[{section}]]: {text!r} is not a regular expression: {error}", code="bad-patterns"
        ) from error


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


@cache
def literal_of(expression: str) -> str:
    """The longest text that is evidently part of whatever the regular expression matches; empty where none is."""
    if _UNCLEAR.search(expression):
        return ""
    rest = _ESCAPE_OR_CLASS.sub("\0", expression)
    while rest != (rest := _GROUP.sub("\0", rest)):
        continue
    if any(sign in rest for sign in "()[]|"):
        return ""
    return max(_NOT_LITERAL.split(_OPTIONAL.sub("\0", rest)), key=len)
