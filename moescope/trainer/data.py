"""Text as bytes: domains, their hashes, and batches that depend on nothing but seed and step.

By default three domains that every Python carries, different enough that a router tells them apart: ``code`` (the
standard library's source), ``prose`` (the interpreter's documentation topics) and ``characters`` (the table of
Unicode names, one line per character: regular, upper-case, a vocabulary of its own).
"""

from __future__ import annotations

import hashlib
import importlib
import sysconfig
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from moescope.errors import DataMissingError
from moescope.trainer.seeds import generator_for
from moescope.trainer.settings.training import DataConfig


@dataclass(frozen=True)
class SourceFile:
    """One text that was read, as run.json lists it."""

    path: str
    """Where it lay; of the text every Python carries the name within it, so that runs of two machines compare."""
    domain: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Domain:
    """The bytes of one domain, uint8, split into a training and a validation part."""

    name: str
    train: Tensor
    validation: Tensor


@dataclass(frozen=True)
class Corpus:
    """All domains and where they come from."""

    domains: tuple[Domain, ...]
    files: tuple[SourceFile, ...]


def load_corpus(config: DataConfig, sequence_length: int) -> Corpus:
    """Read the text; a domain too short for a training and a validation sequence is an error."""
    domains, files = [], []
    for name, texts in _sources(config):
        parts: list[bytes] = []
        size = 0
        for path, text in texts:
            files.append(SourceFile(path, name, len(text), hashlib.sha256(text).hexdigest()))
            parts.append(text)
            size += len(text)
            if size >= config.max_domain_bytes:
                break
        domains.append(_split(name, b"\n".join(parts)[: config.max_domain_bytes], config, sequence_length))
    return Corpus(tuple(domains), tuple(files))


def _split(name: str, text: bytes, config: DataConfig, sequence_length: int) -> Domain:
    needed = sequence_length + 1
    num_validation = max(needed, int(len(text) * config.validation_fraction))
    if len(text) < num_validation + needed:
        raise DataMissingError(
            f"domain {name!r} holds {len(text)} bytes: too few for sequences of {sequence_length}",
            hint="give more text with --data, or a shorter train.sequence_length",
        )
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return Domain(name, data[:-num_validation], data[-num_validation:])


Texts = Iterator[tuple[str, bytes]]


def _sources(config: DataConfig) -> Iterator[tuple[str, Texts]]:
    """(domain, its texts) for each glob, or the defaults."""
    patterns = list(config.files)
    if not patterns:
        yield "code", _standard_library()
        yield "prose", _topics()
        yield "characters", _characters()
        return
    for pattern, paths in config.paths():
        yield _domain_name(pattern, patterns), ((path, _read(path)) for path in paths)


def _domain_name(pattern: str, patterns: list[str]) -> str:
    """The last part of the pattern that has no wildcard, made unique by the pattern's number."""
    fixed = [part for part in Path(pattern).parts if not any(c in part for c in "*?[")]
    name = Path(fixed[-1]).stem if fixed else "data"
    return name if len(patterns) == 1 else f"{name}-{patterns.index(pattern)}"


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataMissingError(f"cannot read {path}: {error.strerror}") from error


def _standard_library() -> Texts:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts and "test" not in path.parts:
            yield f"stdlib: {path.relative_to(root).as_posix()}", path.read_bytes()


def _topics() -> Texts:
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise DataMissingError(
            "this Python lacks its documentation topics (pydoc_data), the default prose", hint="give text with --data"
        ) from error
    yield "pydoc_data.topics", "\n\n".join(topics[name] for name in sorted(topics)).encode()


def _characters() -> Texts:
    lines = []
    for code in range(0x110000):
        character = chr(code)
        name = unicodedata.name(character, "")
        if name and not name.startswith(("CJK UNIFIED", "HANGUL SYLLABLE")):
            lines.append(f"U+{code:04X} {unicodedata.category(character)} {name}")
    yield f"unicodedata {unicodedata.unidata_version}", "\n".join(lines).encode()


@dataclass(frozen=True)
class Batches:
    """Training sequences by step; every layout of ranks sees the same global batch in the same order."""

    corpus: Corpus
    sequence_length: int
    global_batch: int
    seed: int

    def step(self, step: int) -> Tensor:
        """The global batch of ``step``: [global_batch, sequence_length + 1] bytes, domains taking turns."""
        generator = generator_for(f"{self.seed}/data/{step}")
        draws = torch.rand(self.global_batch, generator=generator, dtype=torch.float64).tolist()
        rows = []
        for i, draw in enumerate(draws):
            data = self.corpus.domains[(i + step * self.global_batch) % len(self.corpus.domains)].train
            start = int(draw * (data.numel() - self.sequence_length))
            rows.append(data[start : start + self.sequence_length + 1])
        return torch.stack(rows)

    def microbatches(
        self, step: int, rank: int, world_size: int, size: int, device: torch.device
    ) -> list[tuple[Tensor, Tensor]]:
        """This rank's (tokens, targets) pairs [size, sequence_length] of ``step``.

        Sequence i of the step belongs to microbatch i // (world * size), so that a world of another size cuts the
        step into the same microbatches of ``size`` sequences.
        """
        batch = self.step(step).to(torch.int64).view(-1, world_size, size, self.sequence_length + 1)[:, rank]
        batch = batch.to(device, non_blocking=True)
        return [(rows[:, :-1], rows[:, 1:]) for rows in batch]


def validation_sequences(domain: Domain, sequence_length: int, count: int) -> Tensor:
    """``count`` evenly spaced windows of the validation part, [count, sequence_length + 1]."""
    last = domain.validation.numel() - sequence_length - 1
    starts = [round(last * i / max(1, count - 1)) for i in range(count)]
    return torch.stack([domain.validation[s : s + sequence_length + 1] for s in starts]).to(torch.int64)
