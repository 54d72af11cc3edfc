"""Measures ops on the simulated Xeon Phi: the same answers as a real collector's, marked as simulated."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from threadcast.collector.simulated.counters import counters
from threadcast.collector.simulated.xeon_phi import XeonPhi
from threadcast.collector.timing import Goal
from threadcast.core import Case, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput

NOISE = 0.02
"""Relative deviation of one run, by order of magnitude: in turn, the pair of Table III takes 3 % longer than the same
two ops do in Table II, all of 1000 runs each (Liu et al. 2018)."""
COUNTER_WINDOW_S = 20e-6
"""Assumed: starting and stopping counters spoils as much of a run, so that counts of short ops are inaccurate, which
is what the paper blames its regressors' errors on (Liu et al. 2018, III-B)."""


class SimulatedXeonPhi:
    """Call it as `measure(op, case)` for a `Measurement` with conditions {"simulated": True, ...}.

    `samples` runs a measurement, each `noise` (relative standard deviation, log-normal) off the model and
    independent of the others. The same seed, op and case give the same measurement, in whatever order
    they are asked for. Without `count` no counters are made, as on a machine that offers none. It is also a
    campaign's measurer (`collector.campaign`, with `busy_limit` None: nothing is timed).
    """

    def __init__(
        self,
        model: XeonPhi | None = None,
        *,
        samples: int = 5,
        noise: float = NOISE,
        seed: int = 0,
        count: bool = True,
    ) -> None:
        if samples < 1 or not 0 <= noise < 1:
            raise InvalidInput(f"samples={samples} needs at least 1, noise={noise} from 0 to below 1")
        self.model = model or XeonPhi()
        self.machine = self.model.machine
        self.conditions: Mapping[str, Any] = {"simulated": True, "noise": noise, "seed": seed, "cache": "warm"}
        self._samples, self._noise, self._seed, self._count = samples, noise, seed, count

    def __call__(self, op: Op, case: Case) -> Measurement:
        """Measure `op` at `case`; InvalidInput where the machine has no such case."""
        exact_s = self.model.seconds(op, case)
        random = np.random.default_rng([self._seed, zlib.crc32(f"{op.key} {case}".encode())])
        times = [exact_s * f for f in np.exp(random.normal(0.0, self._noise, self._samples)).tolist()]
        samples = tuple(Sample(seconds, self._counted(op, case, seconds, random)) for seconds in times)
        return Measurement(op, self.machine, case, samples, {**self.conditions, "converged": True})

    @contextmanager
    def at(self, case: Case) -> Iterator[Callable[[Op, Goal], Measurement]]:
        """A block in which ops are measured in `case`; the goal is ignored, the samples asked for are taken."""
        yield lambda op, goal: self(op, case)

    def _counted(self, op: Op, case: Case, seconds: float, random: np.random.Generator) -> dict[str, float]:
        if not self._count:
            return {}
        exact = counters(op, case, seconds, active_threads=self.model.active_threads(op, case.threads))
        blur = min(1.0, math.hypot(self._noise, COUNTER_WINDOW_S / seconds))
        factors = np.exp(random.normal(0.0, blur, len(exact))).tolist()
        return {name: value * factor for (name, value), factor in zip(exact.items(), factors)}
