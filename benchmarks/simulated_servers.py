"""Simulated servers: a simple analytic model of machines with 8 to 128 cores, for a first guess of machines that nobody
measured. Everything here is simulated; no number is a time of real hardware.

    seconds = call + fork * p * sockets used
            + max(imbalance * flops / (p * flops of a core), bytes / bandwidth(p))

Bandwidth is p times a core's, up to that of the sockets in use, or p times that of a core's share of the caches where
the op fits into them. Threads get whole tiles of the output, so that some wait for the last one (imbalance).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from threadcast.core import Cache, Case, Core, Machine, Measurement, Op, Sample
from threadcast.core.curve import Floats

TILE = 48 * 16
"""Elements of an output that a matrix library computes together."""

FLOPS_PER_CYCLE = 16.0
"""Half of the most that AVX2 can do in float32, as `models.nominal_roofline` assumes."""

L2_BYTES, L3_BYTES_PER_CORE = 1 << 20, 2 << 20

CONDITIONS: Mapping[str, Any] = {"simulated": True, "family": "simulated servers", "cache": "warm"}
"""Conditions of each measurement. Machines of one family are alike: none of them is unknown to who knows another."""


@dataclass(frozen=True, slots=True)
class Server:
    """The constants of a simulated server, within the range of today's.

    `flops_per_s`, `bytes_per_s` and `cache_bytes_per_s` are those of one core, from memory and from its caches;
    `socket_bytes_per_s` is the memory bandwidth of a socket. `call_s` is the framework's time for an op, `fork_s` that
    for each thread.
    """

    cores: int
    sockets: int
    flops_per_s: float
    bytes_per_s: float
    socket_bytes_per_s: float
    cache_bytes_per_s: float
    call_s: float
    fork_s: float

    @property
    def machine(self) -> Machine:
        """The machine: cores of a socket share its last cache."""
        of_socket = self.cores // self.sockets
        sockets = [i // of_socket for i in range(self.cores)]
        clock_hz = self.flops_per_s / FLOPS_PER_CYCLE
        cores = tuple(Core(i, (i,), group=s, socket=s, node=s, max_hz=clock_hz) for i, s in enumerate(sockets))
        caches = [Cache(2, L2_BYTES, (i,)) for i in range(self.cores)]
        for socket in range(self.sockets):
            members = tuple(range(socket * of_socket, (socket + 1) * of_socket))
            caches.append(Cache(3, L3_BYTES_PER_CORE * of_socket, members))
        return Machine(f"Simulated server {self.cores}", cores, tuple(caches))

    def curve(self, op: Op, cases: tuple[Case, ...]) -> Floats:
        """(n_cases,) seconds of `op` alone."""
        p = np.array([case.threads for case in cases], dtype=np.float64)
        machine = self.machine
        sockets = np.array([len({machine.cores[i].socket for i in machine.place(case)}) for case in cases])
        cached = op.bytes_moved <= p * (L2_BYTES + L3_BYTES_PER_CORE)
        memory = np.minimum(p * self.bytes_per_s, sockets * self.socket_bytes_per_s)
        rate = np.where(cached, np.maximum(p * self.cache_bytes_per_s, memory), memory)
        tiles = max(sum(spec.numel for spec in op.outputs) / TILE, 1.0)
        imbalance = np.ceil(np.ceil(tiles) / p) * p / np.ceil(tiles)
        loop = np.maximum(imbalance * op.flops / (p * self.flops_per_s), op.bytes_moved / rate)
        found: Floats = self.call_s + self.fork_s * p * sockets + loop
        return found

    def measured(self, op: Op, cases: tuple[Case, ...]) -> list[Measurement]:
        """A measurement without noise at each case."""
        machine = self.machine
        return [
            Measurement(op, machine, case, (Sample(float(seconds)),), CONDITIONS)
            for case, seconds in zip(cases, self.curve(op, cases), strict=True)
        ]


def servers(seed: int = 0) -> list[Server]:
    """Six servers whose constants are drawn from the range of today's machines."""
    random = np.random.default_rng(seed)

    def drawn(low: float, high: float) -> float:
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    return [
        Server(
            cores, sockets, drawn(2e10, 8e10), drawn(8e9, 1.6e10), drawn(4e9, 8e9) * min(cores // sockets, 40),
            drawn(2e10, 6e10), drawn(2e-6, 1e-5), drawn(5e-8, 4e-7),
        )
        for cores, sockets in ((8, 1), (16, 1), (32, 1), (64, 2), (96, 2), (128, 2))
    ]  # fmt: skip
