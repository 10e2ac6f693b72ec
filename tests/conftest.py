"""Shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from rank_pool import RankPool

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four gloo ranks that run functions for tests; started when first asked for."""
    from rank_pool import RankPool  # noqa: PLC0415 - imports torch, which most tests do without

    pool = RankPool(tmp_path_factory.mktemp("ranks") / "store")
    yield pool
    pool.close()
