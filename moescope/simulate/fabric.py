"""The ranks' ports and what collectives do with them, in all scenarios at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from moescope.simulate.config import SimConfig
from moescope.simulate.groups import Groups
from moescope.simulate.network import Tier, exchange_ends
from moescope.simulate.program import Reduce
from moescope.simulate.scenario import Scenario

FloatArray = NDArray[np.float64]


class Fabric:
    """Capacities of all ports, [scenarios, ranks] in bytes per ns, and how long collectives take on them.

    A further scenario, the last, is the run itself with all arriving at once.
    """

    def __init__(self, config: SimConfig, groups: Mapping[str, Groups], scenarios: Sequence[Scenario]):
        self.config, self.groups = config, groups
        self._hosts = np.arange(config.ranks) // config.ranks_per_host
        network = config.network
        self._intra = self._capacity(network.intra_bytes_per_ns, "intra", scenarios)
        self._inter = self._capacity(network.inter_bytes_per_ns, "inter", scenarios)

    def _capacity(self, rate: float, tier: str, scenarios: Sequence[Scenario]) -> FloatArray:
        capacity = np.full((len(scenarios) + 1, self.config.ranks), rate)
        for index, scenario in enumerate((*scenarios, scenarios[0])):
            for fault in scenario.faults:
                factor = fault.port_scale(self._hosts, tier)
                capacity[index] *= 1.0 if factor is None else factor
        return capacity

    def exchange(self, sizes: FloatArray, start: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """An all-to-all inside each expert-parallel group: bytes [scenarios, groups, n, n], starts [scenarios, ranks].

        Returns the ends [scenarios, ranks] and the durations [ranks] that the run's would take with all there at once.
        """
        groups, network = self.groups["ep"], self.config.network
        noise = 1 + network.noise * rng.standard_normal((2, self.config.ranks))
        jitter = self._exit_jitter(rng)
        arrivals = groups.gather(start)
        at_once = np.broadcast_to(arrivals[:1].max(-1, keepdims=True), arrivals[:1].shape)
        batch = np.concatenate([arrivals, at_once])
        ends = self._fluid(np.concatenate([sizes, sizes[:1]]), batch, noise)
        together = groups.scatter(ends[-1] - batch[-1])
        return groups.scatter(ends[:-1]) + jitter, together + jitter

    def _fluid(self, sizes: FloatArray, arrivals: FloatArray, noise: FloatArray) -> FloatArray:
        """Ends [scenarios, groups, n]; all scenarios and groups advance in one batch."""
        network, members = self.config.network, self.groups["ep"].members
        n = members.shape[1]
        hosts = self._hosts[members]
        same = np.broadcast_to(hosts[:, :, None] == hosts[:, None, :], sizes.shape).reshape(-1, n, n)
        intra = self._tier(same, self._intra, noise, network.intra_latency_ns)
        inter = self._tier(~same, self._inter, noise, network.inter_latency_ns)
        ends = exchange_ends(
            sizes.reshape(-1, n, n),
            arrivals.reshape(-1, n),
            (intra, inter),
            network.local_bytes_per_ns,
            network.resolution * max(1.0, n / 16),
        )
        return ends.reshape(arrivals.shape)

    def _tier(self, pairs: NDArray[np.bool_], capacity: FloatArray, noise: FloatArray, latency_ns: float) -> Tier:
        members = self.groups["ep"].members
        send, receive = ((capacity * direction)[:, members].reshape(-1, members.shape[1]) for direction in noise)
        return Tier(pairs, send, receive, latency_ns)

    def reduce(self, op: Reduce, start: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """A collective that no rank leaves before the last has come, as a ring at the slowest member's rate."""
        groups, network = self.groups[op.group], self.config.network
        hosts = self._hosts[groups.members]
        crosses = (hosts != hosts[:, :1]).any(1)
        n = groups.members.shape[1]
        passes = 2 if op.collective == "allreduce" else 1
        moved = passes * (n - 1) / n * op.elements * op.item_bytes
        rate = np.where(crosses, groups.gather(self._inter).min(-1), groups.gather(self._intra).min(-1))
        latency = np.where(crosses, network.inter_latency_ns, network.intra_latency_ns)
        lasts = latency + moved / rate
        jitter = self._exit_jitter(rng)
        ends = groups.gather(start).max(-1) + lasts[:-1]
        spread = np.ones(n)
        return groups.scatter(ends[..., None] * spread) + jitter, groups.scatter(lasts[-1][:, None] * spread) + jitter

    def message(
        self, num_bytes: int, peers: tuple[NDArray[np.int64], NDArray[np.int64]], rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """A message between each pair of ``peers`` at the slower port's rate.

        Returns how long each takes, [scenarios + 1, pairs], and how much later every rank leaves, [ranks].
        """
        network = self.config.network
        crosses = self._hosts[peers[0]] != self._hosts[peers[1]]
        intra, inter = (np.minimum(ports[:, peers[0]], ports[:, peers[1]]) for ports in (self._intra, self._inter))
        latency = np.where(crosses, network.inter_latency_ns, network.intra_latency_ns)
        noise = 1 + network.noise * rng.standard_normal(len(peers[0]))
        return latency + num_bytes * noise / np.where(crosses, inter, intra), self._exit_jitter(rng)

    def _exit_jitter(self, rng: np.random.Generator) -> FloatArray:
        return self.config.network.exit_jitter_ns * np.abs(rng.standard_normal(self.config.ranks))
