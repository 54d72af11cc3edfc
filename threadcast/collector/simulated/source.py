"""Measures ops on the simulated Xeon Phi: the same answers as a real collector's, marked as simulated."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np

from threadcast.collector.simulated.counters import counters
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.core import Case, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput

NOISE = 0.02
"""Relative deviation of one run, by order of magnitude: in turn, the pair of Table III takes 3 % longer than the same
two ops do in Table II, all of 1000 runs each (Liu et al. 2018)."""
COUNTER_WINDOW_S = 20e-6
"""Assumed: starting and stopping counters spoils as much of a run, so that counts of short ops are inaccurate, which
is what the paper blames its regressors' errors on (Liu et al. 2018, III-B)."""


@dataclass(frozen=True, slots=True)
class SimulatedXeonPhi:
    """Call it as `measure(op, case)` for a `Measurement` with conditions {"simulated": True, ...}.

    `samples` runs a measurement, each `noise` (relative standard deviation, log-normal) off the model and
    independent of the others. The same seed, op and case give the same measurement, in whatever order
    they are asked for. Without `count` no counters are made, as on a machine that offers none.
    """

    model: XeonPhi = field(default_factory=XeonPhi)
    samples: int = 5
    noise: float = NOISE
    seed: int = 0
    count: bool = True

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.noise < 1:
            raise InvalidInput(f"samples={self.samples} needs at least 1, noise={self.noise} from 0 to below 1")

    def __call__(self, op: Op, case: Case) -> Measurement:
        """Measure `op` at `case`; InvalidInput where the machine has no such case."""
        exact_s = self.model.seconds(op, case)
        random = np.random.default_rng([self.seed, zlib.crc32(f"{op.key} {case}".encode())])
        times = [exact_s * f for f in np.exp(random.normal(0.0, self.noise, self.samples)).tolist()]
        samples = tuple(Sample(seconds, self._counted(op, case, seconds, random)) for seconds in times)
        conditions = {"simulated": True, "noise": self.noise, "cache": "warm", "converged": True}
        return Measurement(op, self.model.machine, case, samples, conditions)

    def _counted(self, op: Op, case: Case, seconds: float, random: np.random.Generator) -> dict[str, float]:
        if not self.count:
            return {}
        exact = counters(op, case, seconds, active_threads=self.model.active_threads(op, case.threads))
        blur = min(1.0, math.hypot(self.noise, COUNTER_WINDOW_S / seconds))
        factors = np.exp(random.normal(0.0, blur, len(exact))).tolist()
        return {name: value * factor for (name, value), factor in zip(exact.items(), factors)}
