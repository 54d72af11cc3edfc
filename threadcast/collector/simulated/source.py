"""Measures ops on the simulated Xeon Phi: measurements as a real collector returns them, marked as simulated."""

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
"""Relative deviation of one run, by order of magnitude: the two ops of Table III, run in turn, take 3 % longer than the
same ops in Table II, both over 1000 runs (Liu et al. 2018)."""
COUNTER_WINDOW_S = 20e-6
"""Assumed: starting and stopping counters falsifies the counts of so many seconds of a run. Counts of short ops are
therefore inaccurate; the paper names this as the cause of its regressors' errors (Liu et al. 2018, III-B)."""


class SimulatedXeonPhi:
    """Call it as `measure(op, case)` for a `Measurement` with conditions {"simulated": True, ...}.

    A measurement has `samples` samples, which differ from the model by independent log-normal noise of the relative
    standard deviation `noise`. The same seed, op and case give the same measurement, in whatever order they are asked
    for. Without `count` samples have no counters, as on a machine that offers none. A campaign accepts it as its
    measurer (`collector.campaign`).
    """

    def __init__(
        self, model: XeonPhi | None = None, *, samples: int = 5, noise: float = NOISE, seed: int = 0, count: bool = True
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
        """A context manager that returns a function to measure ops in `case`; the function ignores its goal."""
        yield lambda op, goal: self(op, case)

    def _counted(self, op: Op, case: Case, seconds: float, random: np.random.Generator) -> dict[str, float]:
        if not self._count:
            return {}
        exact = counters(op, case, seconds, active_threads=self.model.active_threads(op, case.threads))
        blur = min(1.0, math.hypot(self._noise, COUNTER_WINDOW_S / seconds))
        factors = np.exp(random.normal(0.0, blur, len(exact))).tolist()
        return {name: value * factor for (name, value), factor in zip(exact.items(), factors)}
