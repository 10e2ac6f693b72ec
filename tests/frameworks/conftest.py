"""Tests with the real frameworks. They need an environment of their own: ``make test-frameworks`` makes and uses it.

Collected only there, so that ``make test`` neither needs the frameworks nor skips anything; and there a framework that
is missing is an error.
"""

from __future__ import annotations

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("MOESCOPE_FRAMEWORKS") else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread_and_one_seed() -> None:
    """Several threads would fight for the cores with other tests."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
