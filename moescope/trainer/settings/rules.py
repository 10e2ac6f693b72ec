"""What happens to a setting that breaks a rule: an error with its key path, its value and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moescope.errors import MoescopeError


class ConfigError(MoescopeError):
    """A setting breaks a rule; the message names the key path, its value and the rule.

    The hint is how a value is given on the command line, unless another one is.
    """

    def __init__(self, key: str, value: Any, rule: str, *, hint: str = ""):
        hint = hint or f"set it with --set {key}=VALUE"
        super().__init__(f"{key} = {value!r}: {rule}", code="config-invalid", hint=hint)


def require(holds: bool, key: str, value: Any, rule: str) -> None:
    """Raise a ConfigError unless ``holds``."""
    if not holds:
        raise ConfigError(key, value, rule)


def one_of(key: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ConfigError unless ``value`` is one of ``choices``."""
    require(value in choices, key, value, f"must be one of {', '.join(choices)}")
