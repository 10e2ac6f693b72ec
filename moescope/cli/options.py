"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast

import click

from moescope.intake import MOST_RANKS

F = TypeVar("F", bound=Callable[..., Any])
HostGroups = tuple[tuple[int, ...], ...]


class FiniteRange(click.FloatRange):
    """A number in a range that is finite: comparisons let ``nan`` pass every bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail on what is not finite or out of the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return number


class HostsType(click.ParamType[HostGroups]):
    """Ranks grouped into hosts: ``0-3,4-7`` is two hosts, ``0-3+8-11,4-7+12-15`` two hosts of two ranges each."""

    name = "ranks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> HostGroups:
        """Return one tuple of ranks per host; fail on anything else, and on a rank that is in two hosts."""
        if isinstance(value, tuple):
            return value
        hosts = tuple(self._host(part, param, ctx) for part in str(value).split(","))
        named = Counter(chain.from_iterable(hosts))
        if twice := [rank for rank, times in named.items() if times > 1]:
            self.fail(f"rank {min(twice)} is named twice in {value!r}.", param, ctx)
        return hosts

    def _host(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        ranks: list[int] = []
        for span in text.split("+"):
            match = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", span)
            if match is None or int(match[2] or match[1]) < int(match[1]):
                self.fail(f"{span!r} is no range of ranks; two hosts of four ranks are 0-3,4-7.", param, ctx)
            if int(match[2] or match[1]) > MOST_RANKS:
                self.fail(f"{span!r}: no rank is above {MOST_RANKS:,}.", param, ctx)
            ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
        return tuple(ranks)


class RegexType(click.ParamType[str]):
    """A regular expression with one group that captures the rank from a file's path."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the pattern; fail where it does not compile or captures nothing."""
        try:
            groups = re.compile(str(value)).groups
        except re.error as error:
            self.fail(f"{value!r} is no regular expression: {error}.", param, ctx)
        if groups == 0:
            self.fail(f"{value!r} needs a group that captures the rank, for example 'node-(\\d+)'.", param, ctx)
        return str(value)


def examples(*lines: str) -> str:
    """Return the end of a command's help: calls as they are typed, one a line."""
    return "Examples:\n\n\b\n" + "\n".join(f"  moescope {line}" for line in lines)


def directory_argument(function: F) -> F:
    """Add the argument ``DIR``: a run, or any folder of Kineto traces, as ``path``."""
    return click.argument("path", metavar="DIR", type=click.Path(path_type=Path))(function)


def json_option(function: F) -> F:
    """Add ``--json`` as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(function)


class Reading(TypedDict):
    """What :func:`reading_options` and :func:`baseline_option` add: passed on as it is to what analyses a folder."""

    hosts: HostGroups | None
    rank_regex: str | None
    workers: int | None
    cache: bool
    baseline: Path | None


def reading_options(function: F) -> F:
    """Add what every command that reads traces takes: ``hosts``, ``rank_regex``, ``workers`` and ``cache``.

    And what it need not know of: see :func:`source_options`.
    """
    options = (
        *_SOURCE,
        click.option(
            "--cache/--no-cache", default=True, help="Keep the analysis in DIR/.moescope and reuse it. [default: on]"
        ),
    )
    return hosts_option(_with_options(_with_defaults(function), options))


def hosts_option(function: F) -> F:
    """Add ``--hosts``: which ranks share a clock."""
    return click.option("--hosts", type=HostsType(), help="Ranks that share a host's clock, e.g. 0-3,4-7.")(function)


def source_options(function: F) -> F:
    """Add how to read: ``rank_regex`` and ``workers``; a scheduler and patterns hold for all the command reads."""
    return _with_options(_with_defaults(function), _SOURCE)


_SOURCE = (
    click.option("--rank-regex", type=RegexType(), help="Capture the rank from the path where the trace lacks it."),
    click.option("--workers", type=click.IntRange(min=1), help="Workers that read traces. [default: all cores]"),
    click.option("--scheduler", metavar="ADDRESS", help="Read on this Dask cluster instead, e.g. tcp://host:8786."),
    click.option("--patterns", type=click.Path(path_type=Path), help="TOML table of kernel names to try first."),
)


def _with_options(function: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def _with_defaults(function: F) -> F:
    @wraps(function)
    def command(*args: Any, scheduler: str | None, patterns: Path | None, **options: Any) -> Any:
        from moescope.trace import reading_defaults

        with reading_defaults(scheduler, patterns):
            return function(*args, **options)

    return cast("F", command)


def baseline_option(function: F) -> F:
    """Add ``--baseline``: a file to hold the run against."""
    return click.option(
        "--baseline", type=click.Path(path_type=Path), help="Hold the run against this file of moescope baseline."
    )(function)
