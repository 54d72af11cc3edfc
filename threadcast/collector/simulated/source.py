"""Measures ops on the simulated Xeon Phi: the same answers as a real collector's, marked as simulated."""

from __future__ import annotations

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
    they are asked for.
    """

    model: XeonPhi = field(default_factory=XeonPhi)
    samples: int = 5
    noise: float = NOISE
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1 or not 0 <= self.noise < 1:
            raise InvalidInput(f"samples={self.samples} needs at least 1, noise={self.noise} from 0 to below 1")

    def __call__(self, op: Op, case: Case) -> Measurement:
        """Measure `op` at `case`; InvalidInput where the machine has no such case."""
        exact_s = self.model.seconds(op, case)
        words = f"{op.key} {case}".encode()
        random = np.random.default_rng([self.seed, *words])
        active = self.model.active_threads(op, case.threads)
        samples = []
        for factor in np.exp(random.normal(0.0, self.noise, self.samples)).tolist():
            seconds = exact_s * factor
            counted = counters(op, case, seconds, active_threads=active)
            blur = float(np.hypot(self.noise, COUNTER_WINDOW_S / seconds))
            blurred = np.exp(random.normal(0.0, min(blur, 1.0), len(counted))).tolist()
            samples.append(Sample(seconds, {name: value * f for (name, value), f in zip(counted.items(), blurred)}))
        conditions = {"simulated": True, "noise": self.noise, "cache": "warm", "converged": True}
        return Measurement(op, self.model.machine, case, tuple(samples), conditions)
