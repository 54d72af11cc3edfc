"""How far single timed samples are from the true time: most are close, a few far too slow (disturbed), very few
meaningless (wrong)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from threadcast.core.curve import Floats
from threadcast.models.measured import MeasuredOp

KNOTS = 16
"""Number of ranges of time, with equally many samples each, for which a noise of its own is learned."""

ENOUGH = 200
"""Fewest samples in such a range."""

REPEATS = 3
"""Fewest samples of a case from which its scatter is estimated."""

NARROW, WIDE, SHARE = 0.02, 0.2, 0.05
"""Assumed of a single sample where no case was sampled often enough: standard deviations of its log when undisturbed
and when disturbed, and the share of disturbed samples. Conventions."""

WRONG, WRONG_SHARE, MOST_WRONG, WILD = float(np.log(10.0)), 1e-6, 0.01, float(np.log(2.0))
"""Standard deviation (in log time) of wrong samples, which say nothing (another unit, a machine that has changed); their
share, and among very old ones; and how far off in log time a wrong sample is at least: curves jump more often than a
Gaussian would."""

CONTRADICTED = 3
"""Fewest samples among which one can be recognised as wrong by the others."""

LEAST, ROUNDS = 1e-4, 60
"""Least standard deviation; rounds of expectation and maximisation."""


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """How samples' log times scatter around the true value: a mixture of three normals.

    Each array is (..., 3), for undisturbed, disturbed and wrong samples.
    """

    shares: Floats
    offsets: Floats
    variances: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SampleNoise:
    """The distribution of log samples by log time, a mixture of two normals. Each array is (n_knots,), `knots`
    ascending.

    `knots` are log times. At each, `shares` is the share of disturbed samples, `narrow` the standard deviation of
    undisturbed ones, `offsets` and `wide` are the mean and standard deviation of disturbed ones. On a shared machine a
    disturbance adds about the same seconds to each sample, so short samples scatter more, and towards longer times. The
    arrays are learned by expectation and maximisation (Dempster, Laird, Rubin 1977).
    """

    knots: Floats
    shares: Floats
    narrow: Floats
    offsets: Floats
    wide: Floats

    @classmethod
    def fitted(cls, entries: Sequence[MeasuredOp]) -> SampleNoise:
        """Learn from all cases with `REPEATS` samples or more; the conventions above where there are none."""
        times, apart = [], []
        for entry in entries:
            for measured in entry.by_case.values():
                logs = np.log([sample.seconds for sample in measured.samples])
                if len(logs) >= REPEATS:
                    middle = float(np.median(logs))
                    # a sample is nearer to a median that it is part of
                    apart.append((logs - middle) * np.sqrt(len(logs) / (len(logs) - 1)))
                    times.append(np.full(len(logs), middle))
        if not times or sum(map(len, times)) < ENOUGH:
            return cls.assumed()
        at, off = np.concatenate(times), np.concatenate(apart)
        edges = np.quantile(at, np.linspace(0, 1, min(KNOTS, len(at) // ENOUGH) + 1))
        knots: list[float] = []
        found = []
        for low, high in pairwise(edges.tolist()):
            within = off[(at >= low) & (at <= high)]
            if len(within) and (not knots or (low + high) / 2 > knots[-1]):
                knots.append((low + high) / 2)
                found.append(_two_normals(within))
        return cls(np.array(knots), *np.array(found).T)

    @classmethod
    def assumed(cls) -> SampleNoise:
        """The noise that is assumed where nothing was measured."""
        return cls(*(np.array([value]) for value in (0.0, SHARE, NARROW, 0.0, WIDE)))

    def around(self, logs: Floats, samples: Floats) -> Scatter:
        """The scatter of medians of `samples` samples (less than one for old or doubtful ones) with these `logs`, both
        (n_ops, n_where).

        With fewer than `CONTRADICTED` medians of an op none counts as wrong: the others are too few to decide that.
        """
        share, narrow, offset, wide = (
            np.interp(logs, self.knots, values) for values in (self.shares, self.narrow, self.offsets, self.wide)
        )
        majority = (samples + 1) / 2  # samples that must be disturbed for the median to be disturbed
        share, wrong = share**majority, np.minimum(WRONG_SHARE ** np.sqrt(samples), MOST_WRONG)
        wrong = wrong * (logs.shape[-1] >= CONTRADICTED)
        none = np.zeros_like(share)
        wider = np.maximum(wide, 2 * narrow)
        return Scatter(
            np.stack([1 - share - wrong, share, wrong], axis=-1), np.stack([none, offset, none], axis=-1),
            np.stack([narrow**2 / samples, wider**2 + none, WRONG**2 + none], axis=-1),
        )  # fmt: skip

    def to_arrays(self) -> dict[str, Floats]:
        """The five arrays by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> SampleNoise:
        """The noise with the arrays that `to_arrays` returned; ValueError where they cannot be such arrays."""
        read = cls(*(arrays[name] for name in cls.__slots__))
        sizes = {array.shape for array in read.to_arrays().values()}
        if len(sizes) != 1 or read.knots.ndim != 1 or not len(read.knots) or np.any(np.diff(read.knots) <= 0):
            raise ValueError("noise whose arrays do not fit each other")
        if min(read.narrow.min(), read.wide.min()) <= 0 or not (read.shares.min() >= 0 and read.shares.max() < 1):
            raise ValueError("noise that no samples can have")
        return read


def _two_normals(off: Floats) -> tuple[float, float, float, float]:
    """Share of the wider normal, standard deviation of the narrower, mean and standard deviation of the wider."""
    narrow = max(float(np.quantile(np.abs(off), 0.6)), LEAST)
    share, offset, wide = 0.1, 3 * narrow, 6 * narrow
    for _ in range(ROUNDS):
        near = (1 - share) * np.exp(-0.5 * (off / narrow) ** 2) / narrow
        far = share * np.exp(-0.5 * ((off - offset) / wide) ** 2) / wide
        disturbed = far / (near + far + 1e-300)
        share = float(np.clip(disturbed.mean(), 0.005, 0.5))
        narrow = max(float(np.sqrt(((1 - disturbed) * off**2).sum() / max((1 - disturbed).sum(), 1e-300))), LEAST)
        offset = float((disturbed * off).sum() / max(disturbed.sum(), 1e-300))
        spread = (disturbed * (off - offset) ** 2).sum() / max(disturbed.sum(), 1e-300)
        wide = max(float(np.sqrt(spread)), 2 * narrow)
    return share, narrow, offset, wide
