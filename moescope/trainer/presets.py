"""Presets, and how a TOML file and ``--set`` override them."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moescope.errors import InputUnreadableError, MoescopeError
from moescope.trainer.config import Config
from moescope.trainer.settings.rules import ConfigError

SEE_SETTINGS = "docs/train.md lists the settings; config.toml of a finished run holds all of them"

PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "tiny": {"moe": {"balance": "aux_global", "balance_coefficient": 0.3}},
    "small": {
        "model": {"num_layers": 6, "dim": 256, "num_heads": 8, "dense_hidden_dim": 768},
        "moe": {"num_experts": 16, "top_k": 2, "expert_hidden_dim": 384, "num_shared_experts": 1},
        "train": {
            "steps": 200,
            "sequence_length": 256,
            "microbatch_sequences": 2,
            "global_batch_sequences": 32,
            "learning_rate": 1e-3,
            "warmup_steps": 20,
            "eval_every": 50,
        },
    },
    "gpu": {
        "model": {"num_layers": 12, "dim": 1024, "num_heads": 16, "dense_hidden_dim": 4096},
        "moe": {"num_experts": 64, "top_k": 8, "expert_hidden_dim": 512, "num_shared_experts": 1},
        "train": {
            "steps": 500,
            "sequence_length": 2048,
            "microbatch_sequences": 8,
            "global_batch_sequences": 128,
            "learning_rate": 4e-4,
            "warmup_steps": 50,
            "dtype": "bfloat16",
            "bucket_bytes": 64 * 2**20,
            "eval_every": 100,
        },
    },
}
"""What each preset changes of the defaults. ``tiny``: seconds on two cores; ``small``: minutes on a laptop; ``gpu``:
one or more GPUs of 40 GB and up."""


def load_config(
    preset: str | None = None, toml: Path | None = None, settings: Sequence[str] = (), **sections: Mapping[str, Any]
) -> Config:
    """The effective configuration.

    The preset (given, or named in ``toml``, or tiny) is overridden by ``toml``, that by ``settings``
    (``section.key=value``), and that by ``sections``.
    """
    from_file = {} if toml is None else dict(_read_toml(toml))
    preset = preset or from_file.pop("preset", "tiny")
    from_file.pop("preset", None)
    if preset not in PRESETS:
        raise ConfigError("preset", preset, f"must be one of {', '.join(PRESETS)}", hint="choose it with --preset NAME")
    layers: list[Mapping[str, Any]] = [PRESETS[preset], from_file]
    layers.extend(_parse_setting(text) for text in settings)
    layers.append(sections)
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise ConfigError(section, values, "must be a section with keys", hint=SEE_SETTINGS)
            merged.setdefault(section, {}).update(values)
    return _build(preset, merged)


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputUnreadableError(f"cannot read the configuration {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputUnreadableError(f"{path} is not valid TOML: {error}", hint="see docs/train.md") from error


def _parse_setting(text: str) -> Mapping[str, Any]:
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not equals or not dot or not name:
        raise MoescopeError(f"--set {text!r}: must be section.key=value", hint="for example --set moe.top_k=4")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return {section: {name: parsed}}


def nearest(name: str, known: Iterable[str]) -> str:
    """What was probably meant by a name that is not there."""
    meant = difflib.get_close_matches(name, known, 1, cutoff=0.7)
    return f"did you mean {meant[0]}?" if meant else SEE_SETTINGS


def _build(preset: str, merged: Mapping[str, Mapping[str, Any]]) -> Config:
    sections = {f.name: f.default_factory for f in dataclasses.fields(Config) if f.name != "preset"}
    built: dict[str, Any] = {}
    for section, values in merged.items():
        if section not in sections:
            rule = f"no such section; there are {', '.join(sections)}"
            raise ConfigError(section, dict(values), rule, hint=nearest(section, sections))
        factory: Any = sections[section]
        fields = {f.name: f for f in dataclasses.fields(factory)}
        for key, value in values.items():
            if key not in fields:
                rule = f"no such key; there are {', '.join(fields)}"
                raise ConfigError(f"{section}.{key}", value, rule, hint=nearest(key, fields))
        built[section] = factory(**{k: _convert(f"{section}.{k}", fields[k], v) for k, v in values.items()})
    return Config(preset=preset, **built)


def _convert(key: str, field: dataclasses.Field[Any], value: Any) -> Any:
    """``value`` as the field's type: whole numbers pass for floats, lists for tuples, nothing else is bent."""
    wanted = str(field.type)
    if wanted == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted == "tuple[str, ...]":
        value = (value,) if isinstance(value, str) else value
        if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
            return tuple(value)
        raise ConfigError(key, value, "must be a list of strings")
    kinds: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
    if not isinstance(value, kinds[wanted]) or (wanted == "int" and isinstance(value, bool)):
        raise ConfigError(key, value, f"must be of type {wanted}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, value, "must be a finite number")
    return value


def to_toml(config: Config) -> str:
    """The configuration as TOML, as it is printed and saved; reading it back gives the same configuration."""
    lines = ["# effective configuration", f"preset = {_toml_value(config.preset)}"]
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        if dataclasses.is_dataclass(values):
            lines.append(f"\n[{section.name}]")
            lines.extend(f"{f.name} = {_toml_value(getattr(values, f.name))}" for f in dataclasses.fields(values))
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    return repr(value)
