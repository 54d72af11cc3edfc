"""What is known of a machine that was not learned from: how far forecasts are off there, and what each op that is
measured there tells about all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.json_reading import finite

MOST_SAMPLES = 400
"""Most samples of all ops together from which a machine's shift is computed; the cost grows with the cube."""

ASSUMED_LEVEL, ASSUMED_SHAPE, ASSUMED_MACHINES = float(np.log(2.0)) ** 2, float(np.log(1.3)) ** 2, 1.0
"""Assumed variances of what all ops of a machine share, a factor of 2 in level and of 1.3 in shape, and in how many
machines the assumption is believed."""

LENGTH = 1.0
"""Distance in log threads at which errors of a curve's shape are correlated by 1/e, where no machine tells."""

ROUGH = 0.2
"""Part of the variance of an op's shape that is independent in each case, for smooth forecasts. On simulated servers,
with one and two samples, intervals hold 3 % more often with it than without, and choices cost the same."""

_LEAST = 1e-5


class Sampled(NamedTuple):
    """Samples of one op: log thread counts, errors of the forecast in log seconds, and variances of the samples."""

    log_threads: Floats
    errors: Floats
    noise: Floats


@dataclass(frozen=True, slots=True)
class MachineTransfer:
    """Variances of the errors of log forecasts on a machine that was not learned from.

    Errors are the sum of four independent parts: a level and a shape that all ops of the machine share (`level`,
    `shape`), and a level and a shape of each op (`op_level`, `op_shape`). Shapes at two thread counts are correlated by
    exp(-distance in log threads / `length`).
    """

    level: float = ASSUMED_LEVEL
    shape: float = ASSUMED_SHAPE
    op_level: float = ASSUMED_LEVEL
    op_shape: float = ASSUMED_SHAPE
    length: float = LENGTH
    rough: float = 0.0
    """Variance of a case of an op that is independent of all other cases."""

    @classmethod
    def learned(cls, machines: Iterable[tuple[Floats, Floats]]) -> MachineTransfer:
        """From the errors on machines that were left out: for each its log thread counts (n_cases,) and errors (n_ops,
        n_cases), NaN where nothing was measured."""
        found, lengths = [], []
        for log_threads, errors in machines:
            if errors.shape[0] < 2:
                continue
            shared = np.nanmean(errors, axis=0)
            own = errors - shared
            levels = np.nanmean(own, axis=1, keepdims=True)
            found.append([np.nanmean(shared) ** 2, np.nanvar(shared), np.var(levels), np.nanmean((own - levels) ** 2)])
            if len(log_threads) >= 4:
                lengths.append(_length(log_threads, own - levels))
        assumed = np.array([ASSUMED_LEVEL, ASSUMED_SHAPE])
        if not found:
            return cls()
        parts = np.array(found)
        count = len(parts)
        level, shape = (parts[:, :2].sum(axis=0) + ASSUMED_MACHINES * assumed) / (count + ASSUMED_MACHINES)
        op_level, op_shape = parts[:, 2:].mean(axis=0)
        length = float(np.median(lengths)) if lengths else LENGTH
        own = [max(float(value), _LEAST) for value in (level, shape, op_level, op_shape)]
        return cls(own[0], own[1], own[2], own[3], length)

    def shift(self, log_threads: Floats, sampled: Sequence[Sampled]) -> tuple[Floats, Floats]:
        """The errors that all ops share at these thread counts, given samples of some ops: mean (n_cases,) and
        covariance (n_cases, n_cases).

        Gaussian conditioning (Rasmussen and Williams 2006, 2.2) on all samples together.
        """
        prior = self._covariance(log_threads, log_threads, self.level, self.shape)
        sampled = [one for one in sampled if len(one.errors)]
        if len(sampled) < 2:  # its own samples are taken into account where the op itself is forecast
            return np.zeros(len(log_threads)), prior
        while len(sampled) > 1 and sum(len(one.errors) for one in sampled) > MOST_SAMPLES:
            sampled = sampled[::2]
        at = np.concatenate([one.log_threads for one in sampled])
        of_op = np.repeat(np.arange(len(sampled)), [len(one.errors) for one in sampled])
        same = of_op[:, None] == of_op
        within = self._covariance(at, at, self.level, self.shape)
        within += same * self._covariance(at, at, self.op_level, self.op_shape)
        within += np.diag(np.concatenate([one.noise for one in sampled]) + _LEAST)
        across = self._covariance(log_threads, at, self.level, self.shape)
        gain = np.linalg.solve(within, across.T).T
        mean: Floats = gain @ np.concatenate([one.errors for one in sampled])
        left: Floats = prior - gain @ across.T
        return mean, left

    def of_op(self, log_threads: Floats) -> Floats:
        """The covariance (n_cases, n_cases) of an op's own errors."""
        found = self._covariance(log_threads, log_threads, self.op_level, self.op_shape)
        found[np.diag_indices(len(found))] += self.rough
        return found

    def of_smooth(self) -> MachineTransfer:
        """The same for smooth forecasts (`smooth_curves`): errors bend less from case to case, and what the trees'
        steps had of them is independent."""
        return replace(self, length=max(self.length, LENGTH), rough=ROUGH * self.op_shape)

    def _covariance(self, one: Floats, other: Floats, level: float, shape: float) -> Floats:
        apart = np.abs(np.asarray(one)[:, None] - np.asarray(other))
        found: Floats = level + shape * np.exp(-apart / self.length)
        return found

    def to_json(self) -> list[float]:
        """The five numbers."""
        return [self.level, self.shape, self.op_level, self.op_shape, self.length]

    @classmethod
    def from_json(cls, document: Any) -> MachineTransfer:
        """Read what `to_json` returned; ValueError where these cannot be variances."""
        values = [finite(value, pointer="/transfer") for value in document]
        if len(values) != 5 or min(values) <= 0:
            raise ValueError("a transfer is five numbers above 0")
        return cls(*values)


def _length(log_threads: Floats, shapes: Floats) -> float:
    """The distance over which the shapes (n_ops, n_cases) are correlated, from pairs of cases."""
    known = np.nan_to_num(shapes)
    own = known.T @ known / max(len(known), 1)
    scale = np.sqrt(np.maximum(np.diag(own), _LEAST))
    correlation = np.clip(own / np.outer(scale, scale), -1, 1)
    apart = np.abs(log_threads[:, None] - log_threads)
    lengths = np.geomspace(0.05, 20.0, 25)
    errors = [float(np.mean((correlation - np.exp(-apart / length)) ** 2)) for length in lengths]
    return float(lengths[int(np.argmin(errors))])
