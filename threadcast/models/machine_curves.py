"""The learned state of one machine: how to forecast ops without samples, and how the residuals vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threadcast.core import Case, Op
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import finite, member
from threadcast.models.case_gaussian import CaseGaussian
from threadcast.models.correction import Correction, Forecast
from threadcast.models.machine_limits import work_per_thread
from threadcast.models.op_process import OpProcess, groups

FOREIGN = 1.5
"""An unknown kind of op may be off by so many times as much as the known kind that is off most. A convention."""

UNKNOWN_LEVEL = float(np.log(2.0)) ** 2
"""Variance of the level of log times of an unknown kind. A convention: its work may be twice what is assumed."""


@dataclass(frozen=True, slots=True, eq=False)
class MachineCurves:
    """One machine's `cases`, forecasts for ops without samples, and a Gaussian over their residuals.

    For a kind of op that the process knows, the forecast is the trees' with weight `share` and the process's with the
    rest; for other kinds it is the trees'. `scales`: for each kind, the size of residuals relative to the Gaussian's.
    `widths`: for each kind and number of samples, (most samples + 1,), the width of intervals relative to all kinds.
    `low` and `high`, of the same shape: by how many standard deviations, times the width, the true value is below and
    above in 5 % of the cases each. Without a process the forecast is the trees' alone, without a correction the
    Gaussian's alone.
    """

    cases: tuple[Case, ...]
    gaussian: CaseGaussian
    low: Floats
    high: Floats
    scales: Mapping[str, float] = field(default_factory=dict)
    widths: Mapping[str, Floats] = field(default_factory=dict)
    process: OpProcess | None = None
    share: float = 1.0
    correction: Correction | None = None
    position: dict[Case, int] = field(init=False)
    _kinds: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", {case: i for i, case in enumerate(self.cases)})
        object.__setattr__(self, "_kinds", frozenset(self.process.kinds if self.process else ()))

    def base(self, ops: Sequence[Op], by_trees: Callable[[Sequence[Op]], Floats]) -> Floats:
        """(n_ops, n_cases) log seconds without samples; `by_trees` is called for the ops that need the trees."""
        if self.process is None or self.share == 1:
            return by_trees(ops)
        known = ops if all(op.kind in self._kinds for op in ops) else [op for op in ops if op.kind in self._kinds]
        if not known:
            return by_trees(ops)
        by_process = self.process.forecast(known) + work_per_thread(known, self.cases)
        if len(known) == len(ops) and self.share == 0:
            return by_process
        rows = np.array([op.kind in self._kinds for op in ops])
        found = np.empty((len(ops), len(self.cases)))
        if self.share == 0:
            found[~rows] = by_trees([op for op in ops if op.kind not in self._kinds])
            found[rows] = by_process
        else:
            found[:] = by_trees(ops)
            found[rows] = self.share * found[rows] + (1 - self.share) * by_process
        return found

    def conditioned(
        self, ops: Sequence[Op], base: Floats, where: tuple[int, ...], logs: Floats, noise: Floats,
        *, changed: Floats | float = 0.0,
    ) -> Forecast:  # fmt: skip
        """The Gaussian's forecast of ops that were all sampled at `where`.

        `base` (n_ops, n_cases): log seconds without samples. `logs` and `noise` are (n_ops, n_where): log medians, and
        the variance of each around the true one. `changed` (n_ops,): more variance of the level of ops that may have
        changed since they were learned.
        """
        scales = np.array([self.scale_of(op.kind) for op in ops])
        levels = np.array([self.level_of(op.kind) for op in ops]) + changed
        mean, variance = self.gaussian.given(where, logs - base[:, list(where)], noise, scales, levels)
        return Forecast(ops, base, base + mean, variance, where, logs)

    def scale_of(self, kind: str) -> float:
        """The size of this kind's residuals relative to the Gaussian's."""
        return self.scales.get(kind) or FOREIGN * max(self.scales.values(), default=1.0)

    def deviations(self, forecast: Forecast) -> Floats:
        """(n_ops, n_cases) standard deviations, times the kind's width; an unknown kind has that of the widest known
        one."""
        count = min(len(forecast.where), len(self.low) - 1)
        known = {kind: float(of_kind[count]) for kind, of_kind in self.widths.items()}
        widest = max(known.values(), default=1.0)
        widths = np.array([[known.get(op.kind, widest)] for op in forecast.ops])
        deviations: Floats = np.sqrt(forecast.variance) * widths
        return deviations

    def level_of(self, kind: str) -> float:
        """Variance of the level of a kind's log times, in addition to the Gaussian's."""
        return 0.0 if kind in self.scales or not self.scales else UNKNOWN_LEVEL

    def log_seconds(self, forecast: Forecast) -> Floats:
        """(n_ops, n_cases) log seconds: the Gaussian's, corrected for ops that were sampled and whose kind is known."""
        found = forecast.mean
        if self.correction is not None and forecast.where:
            known = np.array([op.kind in self.scales for op in forecast.ops])
            if known.all():
                return self.correction.corrected(forecast, self.cases)
            found = found.copy()
            if known.any():
                found[known] = self.correction.corrected(forecast.rows(known), self.cases)
        return found

    def to_files(self, name: str) -> tuple[dict[str, Any], dict[str, Floats], dict[str, bytes]]:
        """A JSON document, arrays, and files whose names begin with `name`."""
        document: dict[str, Any] = {
            "cases": [[case.threads, case.affinity] for case in self.cases], "scales": dict(self.scales),
            "widths": {kind: of_kind.tolist() for kind, of_kind in self.widths.items()},
        }  # fmt: skip
        arrays = {
            "mean": self.gaussian.mean, "covariance": self.gaussian.covariance, "noise": self.gaussian.noise,
            "low": self.low, "high": self.high,
        }  # fmt: skip
        if self.process is not None:
            document |= {"kinds": self.process.kinds, "share": self.share}
            arrays |= {f"process.{key}": getattr(self.process, key) for key in _PROCESS}
        document["corrected"] = self.correction is not None
        return document, arrays, self.correction.to_files(name) if self.correction is not None else {}

    @classmethod
    def from_files(
        cls, document: Any, arrays: Mapping[str, Floats], name: str, files: Mapping[str, bytes],
        names: tuple[str, ...] = (),
    ) -> MachineCurves:  # fmt: skip
        """Load what `to_files` returned; ArtefactError, or whatever reading raises, on anything else."""
        cases = tuple(Case(threads, affinity) for threads, affinity in document["cases"])
        mean, covariance, noise = (arrays[key] for key in ("mean", "covariance", "noise"))
        low, high = arrays["low"], arrays["high"]
        n = len(cases)
        fitting = (
            mean.shape == noise.shape == (n,) and covariance.shape == (n, n) and low.shape == high.shape == (len(low),)
        )
        if not n or not fitting or not all(np.all(np.isfinite(array)) for array in arrays.values()):
            raise ArtefactError("the parts of a machine do not fit each other")
        if (
            len(low) == 0
            or min(low.min(), high.min()) < 0
            or min(noise.min(), np.linalg.eigvalsh(covariance).min()) <= 0
        ):
            raise ArtefactError("a machine has a covariance or an interval that is none")
        scales = {str(k): finite(v, pointer="/scales") for k, v in member(document, "scales", dict).items()}
        if min(scales.values(), default=1.0) <= 0:
            raise ArtefactError("a machine has scales that are not above 0")
        widths = _widths_of(document, len(low))
        process, share, correction = _process_of(document, arrays, n, names), float(document["share"]), None
        if not 0 <= share <= 1:
            raise ArtefactError("a machine has a share that is none")
        if member(document, "corrected", bool):
            correction = Correction.from_files(name, files, names)
        return cls(
            cases, CaseGaussian(mean, covariance, noise), low, high, scales, widths, process, share, correction,
        )  # fmt: skip


def _widths_of(document: Any, count: int) -> dict[str, Floats]:
    """For each kind, `count` numbers above 0."""
    found = {}
    for kind, values in member(document, "widths", dict).items():
        if not isinstance(values, list) or len(values) != count:
            raise ArtefactError(f"a machine has no {count} widths of {kind!r}")
        found[str(kind)] = np.array([finite(value, pointer="/widths") for value in values])
        if found[str(kind)].min() <= 0:
            raise ArtefactError("a machine has widths that are not above 0")
    return found


_PROCESS = ("lengths", "described", "weights", "components", "mean")


def _process_of(document: Any, arrays: Mapping[str, Floats], n_cases: int, names: tuple[str, ...]) -> OpProcess:
    kinds = tuple(map(str, document["kinds"]))
    process = OpProcess(kinds, names=names, **{name: arrays[f"process.{name}"] for name in _PROCESS})
    count, numbers = process.components.shape[0], process.lengths.shape[1]
    shapes = [process.described.shape, process.weights.shape, process.components.shape, process.mean.shape]
    expected = [(len(kinds), numbers), (len(kinds), count), (count, n_cases), (n_cases,)]
    grouped = len(process.lengths) == len(groups(count)) and numbers == 4 + len(names)
    if shapes != expected or not grouped or process.lengths.min(initial=1) <= 0:
        raise ArtefactError("the parts of a machine do not fit each other")
    return process
