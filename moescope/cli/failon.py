"""``--fail-on``: conditions that make a command end with exit code 5, for use in scripts and CI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moescope.cli.text import printable

if TYPE_CHECKING:
    from moescope.findings.model import Finding

F = TypeVar("F", bound=Callable[..., Any])
GRADES = ("warning", "critical")
"""Severities that can be a condition: each stands for itself and what is graver."""


class ConditionType(click.ParamType[str]):
    """A finding code or a severity."""

    name = "condition"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the condition; fail on what is neither a finding code nor a severity."""
        from moescope.findings.codes import FINDING_CODES

        if value not in FINDING_CODES and value not in GRADES:
            self.fail(f"{value!r} is neither a severity ({', '.join(GRADES)}) nor a finding code.", param, ctx)
        return str(value)


def fail_on_option(function: F) -> F:
    """Add ``--fail-on CONDITION``, repeatable, as ``fail_on``."""
    text = "Exit with 5 when this finding code, or a finding this grave (warning, critical), is present. Repeatable."
    return click.option("--fail-on", type=ConditionType(), multiple=True, help=text)(function)


def met_conditions(findings: Iterable[Finding], conditions: Sequence[str]) -> list[tuple[str, Finding]]:
    """Return each condition that holds with the first finding that meets it, in the order given."""
    found = list(findings)
    met = ((condition, next((f for f in found if _meets(f, condition)), None)) for condition in conditions)
    return [(condition, finding) for condition, finding in met if finding is not None]


def _meets(finding: Finding, condition: str) -> bool:
    from moescope.findings.codes import SEVERITIES

    if condition in GRADES:
        return SEVERITIES.index(finding.severity) >= SEVERITIES.index(condition)
    return finding.code == condition


def tell(met: Sequence[tuple[str, Finding]]) -> None:
    """Say on stderr which conditions hold."""
    for condition, finding in met:
        click.echo(printable(f"moescope: --fail-on {condition} holds: {finding.code}: {finding.claim}"), err=True)
