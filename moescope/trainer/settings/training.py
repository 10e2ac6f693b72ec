"""The training: batches and optimizer, text, traces and checkpoints."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path

from moescope.errors import DataMissingError
from moescope.trainer.settings.rules import one_of, require


@dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer and schedule."""

    steps: int = 30
    """Optimizer steps."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    sequence_length: int = 128
    """Tokens per sequence."""
    microbatch_sequences: int = 4
    """Sequences per rank and microbatch."""
    global_batch_sequences: int = 32
    """Sequences per step over all ranks; a multiple of ranks * train.microbatch_sequences."""
    learning_rate: float = 2e-3
    """Peak of the schedule."""
    router_learning_rate_ratio: float = 0.1
    """The routers' rate as a share of the others': a slower router moves fewer tokens between experts at once."""
    min_learning_rate_ratio: float = 0.1
    """What remains of the peak at the last step."""
    warmup_steps: int = 5
    """Steps of linear warm-up before the cosine."""
    weight_decay: float = 0.1
    """Decoupled decay of matrices; vectors are not decayed."""
    beta1: float = 0.9
    """AdamW's first decay rate."""
    beta2: float = 0.95
    """AdamW's second decay rate."""
    clip_norm: float = 1.0
    """Largest norm of the whole model's gradient; 0 does not clip."""
    dtype: str = "float32"
    """Compute type: float32, or bfloat16 through autocast with float32 weights."""
    recompute: str = "none"
    """Activations computed again in the backward pass instead of kept: none, experts (inside them), full (layers)."""
    offload_activations: bool = False
    """Keep what the backward pass needs in the host's memory, pinned and copied beside the computation."""
    two_batch_overlap: bool = False
    """Cut every microbatch in two, so that one half computes while the other's rows travel; the losses stay."""
    shard_optimizer: bool = False
    """Keep each optimizer state, and each weight between steps, on one of the ranks that share it (FSDP2)."""
    bucket_bytes: int = 8 * 2**20
    """Size of the buckets in which gradients are reduced."""
    eval_every: int = 0
    """Steps between validations; 0 validates at the end only."""
    eval_sequences: int = 16
    """Validation sequences per domain."""
    log_every: int = 1
    """Steps between status lines."""
    peak_tflops: float = 0.0
    """Dense peak of one device in the compute type, for MFU; 0 looks it up and leaves MFU out if unknown."""

    def __post_init__(self) -> None:
        positive = (
            "steps",
            "sequence_length",
            "microbatch_sequences",
            "global_batch_sequences",
            "bucket_bytes",
            "eval_sequences",
            "log_every",
        )
        for key in positive:
            require(getattr(self, key) >= 1, f"train.{key}", getattr(self, key), "must be at least 1")
        for key in ("learning_rate", "router_learning_rate_ratio"):
            require(getattr(self, key) > 0, f"train.{key}", getattr(self, key), "must be positive")
        for key in ("warmup_steps", "weight_decay", "clip_norm", "eval_every", "peak_tflops"):
            require(getattr(self, key) >= 0, f"train.{key}", getattr(self, key), "must not be negative")
        for key in ("beta1", "beta2"):
            require(0 <= getattr(self, key) < 1, f"train.{key}", getattr(self, key), "must lie in [0, 1)")
        ratio = self.min_learning_rate_ratio
        require(0 <= ratio <= 1, "train.min_learning_rate_ratio", ratio, "must lie in [0, 1]")
        one_of("train.recompute", self.recompute, ("none", "experts", "full"))
        one_of("train.dtype", self.dtype, ("float32", "bfloat16"))


@dataclass(frozen=True)
class DataConfig:
    """Where the text comes from."""

    files: tuple[str, ...] = ()
    """Globs of text files, one domain per glob; empty: what every Python carries (code, prose, characters)."""
    max_domain_bytes: int = 4 * 2**20
    """At most this much text is read per domain."""
    validation_fraction: float = 0.05
    """Share of each domain, at its end, that is kept for validation."""

    def __post_init__(self) -> None:
        require(self.max_domain_bytes >= 1, "data.max_domain_bytes", self.max_domain_bytes, "must be at least 1")
        fraction = self.validation_fraction
        require(0 < fraction < 1, "data.validation_fraction", fraction, "must lie strictly between 0 and 1")

    def paths(self) -> list[tuple[str, list[str]]]:
        """Each glob with the files that it matches; one that matches none is an error."""
        found = []
        for pattern in self.files:
            paths = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())
            if not paths:
                raise DataMissingError(
                    f"--data {pattern}: no file matches", hint="quote the pattern, and use ** for folders"
                )
            found.append((pattern, paths))
        return found


@dataclass(frozen=True)
class ProfileConfig:
    """Which steps leave a trace."""

    enabled: bool = False
    """Whether traces are recorded; telemetry always is."""
    start: int = -1
    """First step of the first window, steps counting from 0; -1: step 26, or earlier if the run would end too soon."""
    steps: int = 2
    """Steps in a window."""
    windows: int = 1
    """Number of windows."""
    every: int = 10
    """Distance between the starts of two windows."""

    def __post_init__(self) -> None:
        require(self.start >= -1, "profile.start", self.start, "must be a step, or -1")
        for key in ("steps", "windows"):
            require(getattr(self, key) >= 1, f"profile.{key}", getattr(self, key), "must be at least 1")
        if self.windows > 1:
            require(self.every > self.steps, "profile.every", self.every, f"must exceed profile.steps = {self.steps}")


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, so that an ended run can be resumed."""

    every: int = 0
    """Steps between checkpoints, and one after the last step; 0 saves none."""
    keep: int = 2
    """How many to keep, the newest ones."""

    def __post_init__(self) -> None:
        require(self.every >= 0, "checkpoint.every", self.every, "must not be negative")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "must be at least 1")
