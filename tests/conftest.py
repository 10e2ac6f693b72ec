"""Shared by all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from rank_pool import RankPool

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """What a test leaves of signal handlers, later tests and the processes they start inherit."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four gloo ranks that run functions for tests; started when first asked for."""
    from rank_pool import RankPool  # noqa: PLC0415 - imports torch, which most tests do without

    pool = RankPool(tmp_path_factory.mktemp("ranks") / "store")
    yield pool
    pool.close()
