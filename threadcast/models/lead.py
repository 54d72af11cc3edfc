"""By how much the model that is cheapest to follow is ahead of the next one, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from threadcast.models.judgement import CONFIDENCE, RESAMPLES, Outcome, Row, lost_s, ranking
from threadcast.models.op_score import OpScore


@dataclass(frozen=True, slots=True)
class Lead:
    """The best row by `ranking`, the next one of another model, and by how much the latter's cost is higher, as `cost`
    is counted, on the ops that both were judged by; from `low` to `high` with 95 % (bootstrap over these ops)."""

    best: Row
    next: Row
    more: float
    low: float
    high: float
    ops: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval excludes 0, so that the best one is better beyond doubt."""
        return self.low > 0

    def to_json(self) -> dict[str, Any]:
        """The lead as a JSON object, with the models by name."""
        named = {name: {"model": row.model, "samples": row.samples, "cost": row.cost} for name, row in
                 (("model", self.best), ("next", self.next))}  # fmt: skip
        return {**named, "more": self.more, "low": self.low, "high": self.high, "ops": self.ops}


def lead_of(rows: Sequence[Row], outcomes: Sequence[Sequence[Outcome]]) -> Lead | None:
    """The lead of the best row; `outcomes[i]` belong to row i. None where fewer than two models could be judged."""
    order = ranking(rows)
    others = [i for i in order if rows[i].model != rows[order[0]].model]
    if not others:
        return None
    best, following = (_scores(outcomes[i]) for i in (order[0], others[0]))
    both = [key for key in best if key in following]
    if not both:
        return None
    steps = rows[order[0]].steps
    more_s = np.array([lost_s(following[key], steps) - lost_s(best[key], steps) for key in both])
    ideal_s = steps * np.array([best[key].best_s for key in both])
    drawn = np.random.default_rng(0).integers(0, len(both), (RESAMPLES, len(both)))
    shares = more_s[drawn].sum(axis=1) / ideal_s[drawn].sum(axis=1)
    low, high = np.quantile(shares, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    more = float(more_s.sum() / ideal_s.sum())
    return Lead(rows[order[0]], rows[others[0]], more, float(low), float(high), len(both))


def _scores(outcomes: Sequence[Outcome]) -> Mapping[tuple[int, int], OpScore]:
    return {(fold, at): score for fold, outcome in enumerate(outcomes) for at, score in outcome.scores.items()}
