"""Union lengths over a device's streams, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from moescope.attribution.device import DeviceIntervals
from moescope.attribution.labels import Label
from moescope.attribution.unions import DeviceUnions, device_unions


def device(*rows: tuple[int, int, Label]) -> DeviceIntervals:
    start, end, label = (np.array([row[place] for row in rows], dtype=np.int64) for place in range(3))
    unknown = np.full(len(rows), -1, dtype=np.int64)
    return DeviceIntervals(
        start,
        end,
        label,
        np.arange(len(rows)),
        unknown,
        np.zeros(len(rows), dtype=bool),
        unknown,
        unknown,
        unknown,
        True,
    )


def test_unions_by_hand() -> None:
    """
    compute   0----10        20-------30
    comm           8------------22        40-45
    copies               15-18                  50-60
    """
    got = device_unions(
        device(
            (0, 10, Label.OTHER_GEMM),
            (20, 30, Label.EXPERT_GEMM),
            (24, 28, Label.ATTENTION),  # on another stream
            (8, 22, Label.ALL_TO_ALL),
            (40, 45, Label.COMM_WAIT),
            (15, 18, Label.COPY),
            (50, 60, Label.COPY),
            (100, 900, Label.ALLOCATOR),  # the host's, not the device's
        )
    )
    assert got == DeviceUnions(
        total=60,
        busy=30 + 5 + 10,
        compute=20,
        communication=14 + 5,
        exposed_communication=10 + 5,
        copies=3 + 10,
        idle=10 + 5,
    )


@pytest.mark.parametrize("base", [0, 1_700_000_000_123_456_000])
def test_absolute_times_do_not_matter(base: int) -> None:
    rows = [(base + 1_001, base + 5_003, Label.OTHER), (base + 4_000, base + 9_007, Label.REDUCTION)]
    assert device_unions(device(*rows), base) == DeviceUnions(8_006, 8_006, 4_002, 5_007, 4_004, 0, 0)


def test_no_device_events() -> None:
    assert device_unions(device()) == DeviceUnions(0, 0, 0, 0, 0, 0, 0)
    assert device_unions(device((0, 5, Label.ALLOCATOR))) == DeviceUnions(0, 0, 0, 0, 0, 0, 0)
