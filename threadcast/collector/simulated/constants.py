"""The numbers of the simulated Xeon Phi: published ones, assumed ones, and those calibrated on two tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from threadcast.collector.simulated.demand import Pass
from threadcast.core.errors import InvalidInput
from threadcast.core.read_only import made_anew

CORES, TILES, HARDWARE_THREADS = 68, 34, 4
"""Liu et al. 2018, II-C; Sodani et al. 2016, "Knights Landing: Second-Generation Intel Xeon Phi Product"."""
CLOCK_HZ = 1.4e9
PEAK_FLOPS_PER_S = CLOCK_HZ * 2 * 16 * 2
"""Peak of one core: two vector units, 16 lanes, a multiply-add counts twice. No calibrated rate may exceed it."""
L2_BYTES = 1 << 20
"""L2 cache of one tile, the last one that the tile does not share (ibid.)."""
MEMORY_BYTES_PER_S = 400e9
"""Bandwidth of the on-package memory, all tiles together (ibid.: STREAM above 400 GB/s). Used as a cache it is lower;
how much depends on its contents."""
CORE_BYTES_PER_S = 10e9
"""Assumed bandwidth of one core alone: in the order of its 12 outstanding line fills of 64 bytes in some 80 ns."""
DISPATCH_S = 25e-6
"""Assumed time of TensorFlow's own work for one op: 8 us for a trivial one on a desktop core (the public measurement
github.com/sillycross/tfcpptest), three times that on a core with half the clock rate that does less in a cycle."""
FORK_JOIN_S_PER_THREAD = 0.2e-6
"""Assumed time to start and join one thread of a warm OpenMP team: 14 us for 68, the order of magnitude in EPCC's
micro-benchmark."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The calibrated constants; `benchmarks/calibrate_xeon_phi.py` computes them.

    `flops_per_s`: flops a second of one core with full vectors, by kernel. `reorder_s_per_byte`: seconds of one
    thread's work on each byte of the filter before and after the parallel loop (into MKL-DNN's blocked layout,
    clearing, adding up), by kernel. `share_bytes_per_s`: bytes a second at which one tile after the other gets its copy
    of shared data. `contention`: how much longer an op takes beside another on the other half of the cores, as a
    fraction (0.2: 20 %). `smt_throughput`: work of a core with several busy hardware threads over its work with one.
    """

    flops_per_s: Mapping[Pass, float]
    reorder_s_per_byte: Mapping[Pass, float]
    share_bytes_per_s: float
    contention: float
    smt_throughput: float

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "reorder_s_per_byte"):
            values = getattr(self, name)
            if set(values) != set(Pass) or min(values.values()) < 0:
                raise InvalidInput(f"{name}={values!r} needs a value of at least 0 for each of {', '.join(Pass)}")
            object.__setattr__(self, name, MappingProxyType(dict(values)))
        if min(self.flops_per_s.values()) <= 0 or self.share_bytes_per_s <= 0:
            raise InvalidInput("flops_per_s and share_bytes_per_s must be above 0")
        if self.contention < 0 or self.smt_throughput < 1:
            raise InvalidInput(f"contention={self.contention} needs at least 0, smt_throughput={self.smt_throughput} 1")

    __reduce__ = made_anew
