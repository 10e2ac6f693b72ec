"""Random generators by name."""

from __future__ import annotations

import hashlib

import torch


def generator_for(name: str) -> torch.Generator:
    """A CPU generator that depends on ``name`` alone, so that nothing drawn depends on the order or place of drawing.

    torch's CPU generator uses 32 bits of its seed; hashing brings every part of the name into them.
    """
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little"))
