"""The common part of all laws of time over threads: a few terms with non-negative weights, fitted to samples.

time(p) = sum of weight[i] * term[i](p)

Errors are relative to the time, and outliers count by a Huber loss. Laws differ in their terms only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from threadcast.core import Affinity, Case, Curve, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, InvalidInput, ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import PerformanceModel
from threadcast.models.doubts import widened
from threadcast.models.interpolation import OTHER_AFFINITY_FACTOR, Knot, knots_of, with_measured
from threadcast.models.intervals import read_log_bounds, residual_bounds
from threadcast.models.measured import by_case, group, usable
from threadcast.models.sampling import evenly_spread

SCHEMA = "threadcast.scaling_law/1"

UNFITTED_BOUNDS = (-float(np.log(1.5)), float(np.log(1.5)))
"""Log-time interval of a law before `fit`. A convention: laws are smooth and curves are not."""

HUBER = 0.1
"""Relative error above which a sample counts linearly and not squared; single timed batches scatter less."""

_ROUNDS = 12
"""Rounds of reweighting; weights converge in fewer."""


def fit_weights(terms: Floats, seconds: Floats) -> Floats:
    """Non-negative weights (n_terms,) of `terms` (n_samples, n_terms) that fit `seconds` (n_samples,) robustly.

    Iteratively reweighted non-negative least squares with Huber's weights on relative errors.
    """
    from scipy.optimize import nnls

    scale = 1 / seconds
    weight = np.ones_like(seconds)
    found: Floats = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weight) * scale
        found, _ = nnls(terms * root[:, None], seconds * root)
        error = np.abs(terms @ found * scale - 1)
        renewed = np.where(error <= HUBER, 1.0, HUBER / np.maximum(error, HUBER))
        if np.allclose(renewed, weight, atol=1e-6):
            break
        weight = renewed
    return found


class ScalingLaw(PerformanceModel):
    """A law that is fitted to each op's own samples, each affinity by itself.

    `samples` is how many cases it proposes, evenly spread. Its points are `measured` at samples, `learned` between them
    and `extrapolated` beyond. `fit` sets the interval: the central 90 % of log residuals over the training ops at cases
    that were not sampled. An affinity without samples uses the other's law, with a wider interval.
    """

    def __init__(self, *, samples: int = 4) -> None:
        if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
            raise InvalidInput(f"samples={samples!r} must be a whole number of at least 1")
        self.samples = samples
        self._bounds = UNFITTED_BOUNDS

    @abstractmethod
    def terms(self, threads: Floats, machine: Machine) -> Sequence[Floats]:
        """Sets of terms at the thread counts `threads`, each (n_threads, n_terms); the set that fits best is used."""

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The next of the evenly spread cases."""
        measured_at = by_case(observed)
        return next((case for case in evenly_spread(machine.cases(), self.samples) if case not in measured_at), None)

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Set the interval from residuals; nothing else is learned."""
        entries, _ = usable(group(measurements))
        residuals = []
        for entry in entries:
            sampled = [c for c in evenly_spread(entry.machine.cases(), self.samples) if c in entry.by_case]
            others = [case for case in entry.by_case if case not in sampled]
            if not sampled or not others:
                continue
            curve = self.predict(entry.op, [entry.by_case[c] for c in sampled], others, machine=entry.machine)
            residuals += [float(np.log(entry.by_case[c].seconds / s)) for c, s in zip(others, curve.seconds)]
        if residuals:
            self._bounds = residual_bounds(np.array(residuals))
        return self

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """The law that fits the samples best; measured points where there are samples.

        ModelError without any sample.
        """
        measured_at = by_case(observed)
        knots = knots_of(measured_at)
        if not knots:
            raise ModelError("nothing was measured of this op; measure the cases that the model proposes first")
        laws = {
            affinity: self._law({c.threads: k for c, k in knots.items() if c.affinity is affinity}, machine)
            for affinity in Affinity
        }
        terms = self.terms(np.array([case.threads for case in cases], dtype=np.float64), machine)
        points = [
            knots.get(case) or self._point(laws, case, [of_set[row] for of_set in terms])
            for row, case in enumerate(cases)
        ]
        seconds, low, high = np.array([point[:3] for point in points], dtype=np.float64).T
        curve = Curve(tuple(cases), seconds, low, high, tuple(point.source for point in points))
        if all(measured.doubt is None for measured in measured_at.values()):
            return curve
        return with_measured(widened(CurveTable.of([curve]), [measured_at]), [knots])[0]

    def _law(self, knots: Mapping[int, Knot], machine: Machine) -> _Law | None:
        if not knots:
            return None
        counts = np.array(sorted(knots), dtype=np.float64)
        seconds = np.array([knots[int(count)].seconds for count in counts])
        best: tuple[float, int, Floats] | None = None
        for which, terms in enumerate(self.terms(counts, machine)):
            weights = fit_weights(terms, seconds)
            error = float(np.sum(np.abs(terms @ weights / seconds - 1)))
            if best is None or error < best[0] - 1e-12:
                best = (error, which, weights)
        assert best is not None
        return _Law(best[1], best[2], counts[0], counts[-1])

    def _point(self, laws: Mapping[Affinity, _Law | None], case: Case, terms: Sequence[Floats]) -> Knot:
        """The forecast at one case; `terms` are those of each set there, (n_terms,)."""
        own = laws[case.affinity]
        law = own or next(law for law in laws.values() if law is not None)
        seconds = max(float(terms[law.which] @ law.weights), 1e-12)
        low, high = np.exp(self._bounds)
        if own is None:
            low, high = low / OTHER_AFFINITY_FACTOR, high * OTHER_AFFINITY_FACTOR
        inside = own is not None and law.first <= case.threads <= law.last
        return Knot(seconds, seconds * low, seconds * high, Source.LEARNED if inside else Source.EXTRAPOLATED)

    def to_files(self) -> dict[str, bytes]:
        """The number of samples and the interval."""
        document = {"schema": SCHEMA, "law": self.name, "samples": self.samples, "log_bounds": list(self._bounds)}
        return {"model.json": json_bytes(document)}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            if document["law"] != self.name:
                raise ArtefactError(f"model.json is of {document['law']!r}, not of {self.name!r}")
            ScalingLaw.__init__(self, samples=member(document, "samples", int))
            self._bounds = read_log_bounds(document["log_bounds"])
        return self


class _Law:
    """Weights of one set of terms, and the range of thread counts that they were fitted to."""

    __slots__ = ("first", "last", "weights", "which")

    def __init__(self, which: int, weights: Floats, first: float, last: float) -> None:
        self.which, self.weights, self.first, self.last = which, weights, first, last
