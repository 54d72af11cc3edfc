"""How much wider intervals are for ops that are unlike all known ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import finite, member

LEAST_OPS, PRIOR_OPS = 20, 5.0
"""Fewest ops from which it is learned, and the weight, in ops, of the assumption that novelty does not matter."""

LEAST_SPREAD, MOST_SLOPE = 0.1, 2.0
"""Novelties that differ less tell nothing; intervals grow at most with this power of the distance. Conventions."""

BEYOND = float(np.log(2.0))
"""How far beyond the most novel of the known ops a relation is believed, in log distance. A convention."""


@dataclass(frozen=True, slots=True, eq=False)
class NoveltyWidth:
    """Intervals of an op are exp(`slopes`[samples] x (novelty - `centre`)) times as wide as those of a typical one.

    The novelty of an op is the log of its distance to the nearest known op (`OpProcess.novelty`). `slopes` has one
    number for each number of samples, from 0 on, none below 0. Novelties are limited to those from `least` to `most`.
    """

    slopes: Floats
    centre: float = 0.0
    least: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, novelty: Floats, samples: int) -> Self:
        """Limits from the novelties (n_ops,) of the known ops, each with itself left out; slopes are 0."""
        known = novelty[np.isfinite(novelty)]
        if len(known) < LEAST_OPS:
            return cls(np.zeros(samples + 1))
        low, middle, high = (float(np.quantile(known, share)) for share in (0.05, 0.5, 1.0))
        return cls(np.zeros(samples + 1), middle, low, high + BEYOND)

    def learned(self, count: int, novelty: Floats, scores: Floats) -> Self:
        """With the slope for `count` samples, from errors `scores` (n_ops, n_cases) in standard deviations, NaN where
        there are none: least squares on the log of the 90th percentile of each op's errors."""
        measured = ~np.isnan(scores).all(axis=1)
        typical = np.full(len(scores), np.nan)
        typical[measured] = np.nanquantile(np.abs(scores[measured]), 0.9, axis=1)
        some = np.isfinite(novelty) & np.isfinite(typical) & (typical > 0)
        if some.sum() < LEAST_OPS or self.most == self.least:
            return self
        x = np.clip(novelty[some], self.least, self.most) - self.centre
        logs = np.log(typical[some])
        x, logs = x - x.mean(), np.clip(logs - np.median(logs), -3.0, 3.0)
        if x.std() < LEAST_SPREAD:
            return self
        slopes = self.slopes.copy()
        slopes[count] = min(max(float(x @ logs / (x @ x + PRIOR_OPS * x.var())), 0.0), MOST_SLOPE)
        return replace(self, slopes=slopes)

    def same_as_before(self, count: int) -> Self:
        """With the slope of `count` - 1 samples for `count` samples too."""
        slopes = self.slopes.copy()
        slopes[count] = slopes[count - 1]
        return replace(self, slopes=slopes)

    def first(self, samples: int) -> Self:
        """For at most so many samples."""
        return replace(self, slopes=self.slopes[: samples + 1])

    def factors(self, novelty: Floats, count: int) -> Floats:
        """(n_ops,) factors of the widths of intervals; 1 where the novelty is not known."""
        known = np.where(np.isnan(novelty), self.centre, novelty)
        x = np.minimum(np.maximum(known, self.least), self.most) - self.centre
        found: Floats = np.exp(self.slopes[min(count, len(self.slopes) - 1)] * x)
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"slopes": self.slopes.tolist(), "centre": self.centre, "least": self.least, "most": self.most}

    @classmethod
    def from_json(cls, document: Any, samples: int) -> Self:
        """Read what `to_json` returned; ArtefactError on anything else."""
        slopes = [finite(value, pointer="/novelty/slopes") for value in member(document, "slopes", list)]
        centre, least, most = (
            finite(document[name], pointer=f"/novelty/{name}") for name in ("centre", "least", "most")
        )
        if (
            len(slopes) != samples + 1
            or not 0 <= min(slopes) <= max(slopes) <= MOST_SLOPE
            or not least <= centre <= most
        ):
            raise ArtefactError("a machine has widths by novelty that are none")
        return cls(np.array(slopes), centre, least, most)
