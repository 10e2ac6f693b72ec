"""Text: where it comes from, and that every layout of ranks sees the same batches."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from miniature import mini_corpus

from moescope.errors import DataMissingError
from moescope.trainer.data import Batches, load_corpus, validation_sequences
from moescope.trainer.settings.training import DataConfig


@given(st.integers(0, 50), st.sampled_from([1, 2, 4]))
def test_every_world_cuts_a_step_into_the_same_microbatches(step: int, world_size: int) -> None:
    batches = Batches(mini_corpus(), 16, 8, seed=3)
    cpu = torch.device("cpu")
    alone = batches.microbatches(step, 0, 1, 2, cpu)
    shared = [batches.microbatches(step, rank, world_size, 2, cpu) for rank in range(world_size)]
    ordered = [shared[rank][i] for i in range(4 // world_size) for rank in range(world_size)]
    assert all(torch.equal(mine[0], theirs[0]) for mine, theirs in zip(ordered, alone, strict=True))
    assert all(torch.equal(tokens[:, 1:], targets[:, :-1]) for tokens, targets in alone)


def test_steps_and_seeds_differ_and_repeat() -> None:
    first, again, other_seed = (
        Batches(mini_corpus(), 16, 8, 0),
        Batches(mini_corpus(), 16, 8, 0),
        Batches(mini_corpus(), 16, 8, 1),
    )
    assert torch.equal(first.step(5), again.step(5))
    assert not torch.equal(first.step(5), first.step(6))
    assert not torch.equal(first.step(5), other_seed.step(5))


def test_validation_windows_are_spread_over_the_held_out_part() -> None:
    domain = mini_corpus().domains[0]
    rows = validation_sequences(domain, 32, 5)
    assert rows.shape == (5, 33)
    assert torch.equal(rows[0], domain.validation[:33].long())
    assert torch.equal(rows[-1], domain.validation[-33:].long())


def test_the_default_text_is_three_domains_with_hashes() -> None:
    corpus = load_corpus(DataConfig(max_domain_bytes=50_000), 128)
    assert [domain.name for domain in corpus.domains] == ["code", "prose", "characters"]
    assert {file.domain for file in corpus.files} == {"code", "prose", "characters"}
    source = next(file for file in corpus.files if file.domain == "code")
    in_stdlib = Path(sysconfig.get_paths()["stdlib"]) / source.path.removeprefix("stdlib: ")
    assert source.sha256 == hashlib.sha256(in_stdlib.read_bytes()).hexdigest()
    assert b"LATIN" in bytes(corpus.domains[2].train.tolist())


def test_files_of_ones_own_are_a_domain_per_glob(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").write_text("one " * 200)
    (tmp_path / "a" / "2.txt").write_text("two " * 200)
    (tmp_path / "b.md").write_text("three " * 200)
    corpus = load_corpus(DataConfig(files=(f"{tmp_path}/a/*.txt", f"{tmp_path}/b.md")), 32)
    assert [domain.name for domain in corpus.domains] == ["a-0", "b-1"]
    assert [Path(file.path).name for file in corpus.files] == ["1.txt", "2.txt", "b.md"]


def test_no_text_and_too_little_text_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match="no file matches"):
        load_corpus(DataConfig(files=(f"{tmp_path}/*.txt",)), 32)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(DataMissingError, match="too few for sequences of 32"):
        load_corpus(DataConfig(files=(f"{tmp_path}/short.txt",)), 32)
