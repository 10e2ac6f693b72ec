"""Clocks of the hosts: what each would have shown at a true time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.faults import Clock

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

EPOCH_NS = 1_795_951_970_000_000_000
"""True time 0 of every simulated run, Unix nanoseconds."""
_CLOCK = 3


@dataclass(frozen=True, slots=True)
class HostClocks:
    """Local time = true time + offset + drift * (true time - EPOCH_NS)."""

    offset_ns: IntArray
    """[hosts]."""
    drift_ppm: FloatArray
    """[hosts]."""

    def local(self, true_ns: IntArray, host: int) -> IntArray:
        """True times since the start of the run, as Unix times on the host's clock."""
        drift = np.rint(true_ns * (self.drift_ppm[host] * 1e-6)).astype(np.int64)
        return np.asarray(true_ns + drift + self.offset_ns[host] + EPOCH_NS)


def host_clocks(config: SimConfig) -> HostClocks:
    """The first host is the reference; the others are off where a ``clock`` fault says so."""
    offset, drift = np.zeros(config.num_hosts), np.zeros(config.num_hosts)
    rng = np.random.default_rng([config.seed, _CLOCK])
    for fault in config.faults:
        if isinstance(fault, Clock):
            offset += rng.uniform(-1, 1, config.num_hosts) * fault.offset_ms * 1e6
            drift += rng.uniform(-1, 1, config.num_hosts) * fault.drift_ppm
    offset[0] = drift[0] = 0.0
    return HostClocks(np.rint(offset).astype(np.int64), drift)
