"""Laws of time over threads: a few terms with non-negative weights, fitted to samples.

time(p) = sum of weight[i] * term[i](p)

Errors are relative to the time, and outliers count by a Huber loss. Laws differ in their terms only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from threadcast.core import Affinity, Case, Curve, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.arguments import check_whole
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import PerformanceModel
from threadcast.models.doubts import widened
from threadcast.models.interpolation import OTHER_AFFINITY_FACTOR, Knot, curve_through, knots_of, with_measured
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


def _terms_of_few(threads: Floats) -> Floats:
    """1 / p, 1 and p, (n_threads, 3)."""
    return np.stack([1 / threads, np.ones_like(threads), threads], axis=1)


def _weights_of_few(counts: Floats, seconds: Floats) -> Floats:
    """Weights (3,) of `_terms_of_few` where one or two thread counts were sampled; see `ScalingLaw`."""
    terms = _terms_of_few(counts)
    if len(counts) == 1:
        divided = 1 / (1 + np.sqrt(counts[0]))
        return seconds[0] / terms[0] * np.array([divided, 1 - divided, 0])  # type: ignore[no-any-return]
    falling, growing = fit_weights(terms[:, [0, 2]], seconds)
    return np.array([falling, 0, growing])


class ScalingLaw(PerformanceModel):
    """A law that is fitted to each op's own samples, each affinity by itself.

    Samples at fewer thread counts than there are terms do not decide the weights: a term that grows with p could stand
    for all of the time, with next to none left at one thread. Two counts are then described by b / p + c p, one by
    a + b / p with a time at one thread halfway, in logarithms, between no scaling and linear scaling. No forecast is
    below what linear scaling from every sample, or its inverse, leaves.

    `samples` is how many cases it proposes, evenly spread. Its points are `measured` at samples, `learned` between them
    and `extrapolated` beyond. `fit` sets the interval: the central 90 % of log residuals over the training ops at cases
    that were not sampled. Before, points beyond samples have at least the one of `interpolation.curve_through`. An
    affinity without samples uses the other's law, with a wider interval.
    """

    def __init__(self, *, samples: int = 4) -> None:
        check_whole("samples", samples)
        self.samples = samples
        self._bounds = UNFITTED_BOUNDS

    @abstractmethod
    def terms(self, threads: Floats) -> Floats:
        """The terms at the thread counts `threads`, (n_threads, n_terms)."""

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The next of the evenly spread cases."""
        measured_at = by_case(observed)
        return next((case for case in evenly_spread(cases, self.samples) if case not in measured_at), None)

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
        own = {
            affinity: self._law({c.threads: k for c, k in knots.items() if c.affinity is affinity})
            for affinity in {case.affinity for case in knots}
        }
        laws = {affinity: own.get(affinity) or next(iter(own.values())) for affinity in Affinity}
        threads = np.array([case.threads for case in cases], dtype=np.float64)
        terms = {False: self.terms(threads), True: _terms_of_few(threads)}
        points = [
            knots.get(case)
            or self._point(law := laws[case.affinity], case, terms[law.is_of_few][row], own=case.affinity in own)
            for row, case in enumerate(cases)
        ]
        seconds, low, high = np.array([point[:3] for point in points], dtype=np.float64).T
        source = tuple(point.source for point in points)
        if self._bounds == UNFITTED_BOUNDS:
            beyond = [not laws[case.affinity].spans(case.threads) for case in cases]
            through = curve_through(knots, cases)
            low[beyond] = np.minimum(low, through.low)[beyond]
            high[beyond] = np.maximum(high, through.high)[beyond]
        curve = Curve(tuple(cases), seconds, low, high, source)
        if all(measured.doubt is None for measured in measured_at.values()):
            return curve
        return with_measured(widened(CurveTable.of([curve]), [measured_at]), [knots])[0]

    def _law(self, knots: Mapping[int, Knot]) -> _Law:
        counts = np.array(sorted(knots), dtype=np.float64)
        seconds = np.array([knots[int(count)].seconds for count in counts])
        terms = self.terms(counts)
        few = len(counts) < terms.shape[1]
        return _Law(few, _weights_of_few(counts, seconds) if few else fit_weights(terms, seconds), knots)

    def _point(self, law: _Law, case: Case, terms: Floats, *, own: bool) -> Knot:
        """The forecast at one case; `terms` are those of the law there, (n_terms,).

        `own` is False where the law is the other affinity's.
        """
        seconds = max(float(terms @ law.weights), law.least(case.threads))
        low, high = np.exp(self._bounds)
        if not own:
            low, high = low / OTHER_AFFINITY_FACTOR, high * OTHER_AFFINITY_FACTOR
        source = Source.LEARNED if own and law.spans(case.threads) else Source.EXTRAPOLATED
        return Knot(seconds, seconds * low, seconds * high, source)

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


class _Law(NamedTuple):
    """Weights of a law's terms, or of `_terms_of_few`, and what they were fitted to, by thread count."""

    is_of_few: bool
    weights: Floats
    knots: Mapping[int, Knot]

    def spans(self, threads: int) -> bool:
        """Whether `threads` is not beyond the samples."""
        return min(self.knots) <= threads <= max(self.knots)

    def least(self, threads: int) -> float:
        """The least seconds at `threads` that linear scaling from each sample, or its inverse, leaves."""
        return min(knot.seconds * min(threads / count, count / threads) for count, knot in self.knots.items())


class Amdahl(ScalingLaw):
    """time(p) = a + b / p: a part that threads divide and a part that they do not.

    Source: Amdahl 1967, "Validity of the single processor approach to achieving large scale computing capabilities".
    The time never rises with p: unless b is 0, the best count is always all threads.
    """

    name = "amdahl"

    def terms(self, threads: Floats) -> Floats:
        """1 and 1 / p."""
        return np.stack([np.ones_like(threads), 1 / threads], axis=1)


class UniversalScalability(ScalingLaw):
    """time(p) = time(1) (1 + s (p - 1) + k p (p - 1)) / p, with s the contention and k the coherence.

    Written as weights of 1 / p, (p - 1) / p and p - 1, in which it is linear. Source: Gunther 1993, "A simple capacity
    model of massively parallel transaction systems"; Gunther 2007, "Guerrilla Capacity Planning", chapter 4.
    """

    name = "universal_scalability"

    def terms(self, threads: Floats) -> Floats:
        """1 / p, (p - 1) / p and p - 1."""
        return np.stack([1 / threads, (threads - 1) / threads, threads - 1], axis=1)
