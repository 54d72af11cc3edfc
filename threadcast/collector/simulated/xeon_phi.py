"""An analytic model of the paper's machine, a Xeon Phi 7250: how long an op takes with p threads.

    seconds = dispatch                                    TensorFlow's own work, every op
            + fork * p                                    starting and joining an OpenMP team
            + reorder * filter bytes                      what one thread does before and after the loop
            + tiles * min(shared bytes, L2) / share rate  each tile gets its copy, one tile after the other
            + max(flops / (p * rate * fill),              the loop itself: arithmetic or traffic, whichever is longer
                  bytes / bandwidth(p, tiles))

The third and fourth line limit scaling: the paper names non-parallel code and the cost of more threads as the causes
(section II-C). A tile is two cores with one L2: p threads fill p / 2 tiles under COMPACT, p under SPREAD, which
therefore pays twice for shared data and has twice the bandwidth. Everything here is simulated; nothing is a time or a
count of real hardware. docs/simulated-xeon-phi.md says how well the model fits and where it does not.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from threadcast.collector.simulated.calibrated import CALIBRATED
from threadcast.collector.simulated.constants import (
    CLOCK_HZ,
    CORE_BYTES_PER_S,
    CORES,
    DISPATCH_S,
    FORK_JOIN_S_PER_THREAD,
    HARDWARE_THREADS,
    L2_BYTES,
    MEMORY_BYTES_PER_S,
    TILES,
    Constants,
)
from threadcast.collector.simulated.demand import Demand, Library, demand
from threadcast.core import Affinity, Cache, Case, Core, Curve, Machine, Op
from threadcast.core.errors import InvalidInput

Floats = NDArray[np.float64]

EIGEN_CYCLES_PER_BYTE = 11 / 64
EIGEN_STARTUP_CYCLES = 100_000
EIGEN_CYCLES_PER_THREAD = 100_000
"""Eigen's estimate of an op's cost and of the threads it is worth (unsupported/Eigen/CXX11/src/Tensor/
TensorCostModel.h, the same from 2016 on)."""


@lru_cache
def xeon_phi_machine() -> Machine:
    """The machine of 68 cores, two to a tile, with four hardware threads each; its `cases()` are the paper's 68."""
    cores = tuple(
        Core(i, tuple(i + thread * CORES for thread in range(HARDWARE_THREADS)), group=i // 2, max_hz=CLOCK_HZ)
        for i in range(CORES)
    )
    caches = (
        *(Cache(1, 32 << 10, (i,)) for i in range(CORES)),
        *(Cache(2, L2_BYTES, (2 * i, 2 * i + 1)) for i in range(TILES)),
    )
    return Machine("Simulated Xeon Phi 7250", cores, caches)


class XeonPhi:
    """The model: gives the seconds of any op in any case, without noise."""

    def __init__(self, constants: Constants = CALIBRATED) -> None:
        self.constants = constants
        self.machine = xeon_phi_machine()

    def seconds(self, op: Op, case: Case) -> float:
        """Seconds of `op` alone in `case`, with one thread on each core; InvalidInput where it has too many threads."""
        limit = TILES if case.affinity is Affinity.SPREAD else CORES
        if case.threads > limit:
            raise InvalidInput(f"threads={case.threads} {case.affinity} exceeds the {limit} of {self.machine.name}")
        return float(self.curve(op, case.threads, affinity=case.affinity))

    def curve(self, op: Op, threads: ArrayLike, *, affinity: Affinity = Affinity.COMPACT) -> Floats:
        """Seconds of `op` alone at each thread count, with one thread on each core.

        Float64 of the shape of `threads`.
        """
        p = np.asarray(threads, dtype=np.float64)
        needs = demand(op)
        tiles = p if affinity is Affinity.SPREAD else np.ceil(p / 2)
        if needs.library is Library.MKL_BLAS:
            return self._fewer_if_faster(needs, p, affinity)
        return self._law(needs, p, tiles)

    def exact_curve(self, op: Op) -> Curve:
        """The op's seconds at each of the machine's cases, without noise: what forecasts are judged by."""
        every = {affinity: self.curve(op, np.arange(1, CORES + 1), affinity=affinity) for affinity in Affinity}
        cases = self.machine.cases()
        return Curve.exact(cases, [float(every[case.affinity][case.threads - 1]) for case in cases])

    def crowded_seconds(self, op: Op, threads: int, cores: int) -> float:
        """Seconds of `op` alone with `threads` threads on `cores` cores, COMPACT, with several threads on a core."""
        needs = demand(op)
        if needs.library is Library.MKL_BLAS or threads <= cores:
            return float(self.curve(op, min(threads, cores)))
        p = np.asarray(cores, dtype=np.float64)
        return float(self._law(needs, p, np.ceil(p / 2), per_core=threads / cores))

    def active_threads(self, op: Op, threads: int) -> int:
        """How many of `threads` the op keeps busy: all of an OpenMP team; of Eigen's pool as many as pay off."""
        needs = demand(op)
        return int(_eigen_threads(needs, threads)) if needs.library is Library.EIGEN else threads

    def _law(self, needs: Demand, p: Floats, tiles: Floats, per_core: float = 1.0) -> Floats:
        """Seconds by the formula in the module's docstring, with `per_core` threads on each of `p` cores."""
        constants = self.constants
        if needs.library is Library.EIGEN:
            p = _eigen_threads(needs, p)
            return DISPATCH_S + needs.bytes / _bandwidth(p, p)
        fixed = DISPATCH_S + FORK_JOIN_S_PER_THREAD * p * per_core
        shared = tiles * min(needs.shared_bytes, L2_BYTES) / constants.share_bytes_per_s
        loop = needs.bytes / _bandwidth(p, tiles)
        if needs.kernel is None:
            return np.asarray(fixed + shared + loop)
        throughput = constants.smt_throughput if 1 < per_core <= HARDWARE_THREADS else 1.0
        arithmetic = needs.flops / (p * constants.flops_per_s[needs.kernel] * needs.fill * throughput)
        blocked = needs.library is Library.MKL_DNN
        reorder = constants.reorder_s_per_byte[needs.kernel] * needs.shared_bytes if blocked else 0.0
        return np.asarray(fixed + reorder + shared + np.maximum(arithmetic, loop))

    def _fewer_if_faster(self, needs: Demand, p: Floats, affinity: Affinity) -> Floats:
        """Seconds with MKL_DYNAMIC: the least of all thread counts up to p."""
        every = np.arange(1, CORES + 1, dtype=np.float64)
        tiles = every if affinity is Affinity.SPREAD else np.ceil(every / 2)
        best = np.minimum.accumulate(self._law(needs, every, tiles))
        return np.asarray(best[np.minimum(p, CORES).astype(int) - 1])


def _bandwidth(threads: Floats, tiles: Floats) -> Floats:
    """Bytes a second: the smaller of what the cores can request and what the memory gives their tiles."""
    of_tiles = np.minimum(tiles, TILES) * (MEMORY_BYTES_PER_S / TILES)
    return np.minimum(threads * CORE_BYTES_PER_S, of_tiles)


def _eigen_threads(needs: Demand, pool: ArrayLike) -> Floats:
    cycles = needs.bytes * EIGEN_CYCLES_PER_BYTE + needs.flops
    worth = np.floor((cycles - EIGEN_STARTUP_CYCLES) / EIGEN_CYCLES_PER_THREAD + 0.9)
    return np.minimum(pool, np.maximum(1.0, worth))
