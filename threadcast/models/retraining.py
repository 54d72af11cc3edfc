"""Retraining: a candidate of the champion's kind is fitted to the latest measurements and compared on held-out ops."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from threadcast.core.errors import ModelError
from threadcast.core.settings_table import STEPS
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import judge_together
from threadcast.models.judgement import Row
from threadcast.models.measured import MeasuredOp, usable

HELD_OUT = 5
"""One op in so many is held out: models are judged by it, and candidates never learn from it."""

MIN_HELD_OUT = 4
"""Fewest held-out ops for a judgement."""

REGRET_SLACK = 0.01
"""Largest difference of mean regret and of cost, candidate less champion, at which a candidate with better forecasts
wins. 1 % is about the smallest difference that medians of few samples can show. A first champion has mostly learned
from the held-out ops too; on synthetic ops that alone makes its choices 0.6 % better than those of any candidate."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The candidate, and its scores and the champion's on the same points of the same held-out ops.

    `learned_ops` is the number of ops that the candidate learned from.
    """

    candidate: PerformanceModel
    champion_row: Row
    candidate_row: Row
    learned_ops: int

    @property
    def better(self) -> bool:
        """Whether the candidate is better: it can be judged by more ops than the champion, or by as many ops and then
        forecasts better, chooses no worse and costs no more, measuring included (both up to `REGRET_SLACK`). False with
        fewer than `MIN_HELD_OUT` ops."""
        old, new = self.champion_row, self.candidate_row
        if new.unusable != old.unusable:
            return new.unusable < old.unusable
        if new.accuracy is None or old.accuracy is None or new.ops < MIN_HELD_OUT:
            return False
        no_worse = all(
            (ours or 0.0) <= (theirs or 0.0) + REGRET_SLACK
            for ours, theirs in ((new.regret_mean, old.regret_mean), (new.cost, old.cost))
        )
        return new.accuracy > old.accuracy and no_worse

    def to_json(self) -> dict[str, Any]:
        """Both rows as a JSON object, with members "champion" and "candidate"."""
        return {"champion": self.champion_row.to_json(), "candidate": self.candidate_row.to_json()}


def is_held_out(key: str) -> bool:
    """Whether the op with this key is held out.

    It depends on the key alone, so no candidate ever learns from such an op.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT == 0


def compete(champion: PerformanceModel, measured: Sequence[MeasuredOp], *, steps: int = STEPS) -> Verdict:
    """Fit a copy of `champion` to the ops that are not held out, and compare both on the held-out ones.

    `measured` is what holds of each op now. `steps` is how often a user runs each op, over which the measuring of
    samples must pay off. A champion that was fitted elsewhere may have learned from some of the held-out ops, which is
    in its favour. ModelError where there are too few measurements to learn from or to judge by.
    """
    entries, _ = usable(measured)
    judging = held_out(entries)
    learning = [entry for entry in entries if not is_held_out(entry.op.key)]
    if len(judging) < MIN_HELD_OUT or not learning:
        raise ModelError(
            f"{len(judging)} of {len(entries)} ops are held out, and judging takes {MIN_HELD_OUT}; measure more ops"
        )
    candidate = copy.deepcopy(champion).fit([measured for entry in learning for measured in entry.by_case.values()])
    old, new = judge_together([champion, candidate], judging, split_name="held out", steps=steps)
    return Verdict(candidate, old, new, learned_ops=len({entry.op.key for entry in learning}))


def held_out(entries: Sequence[MeasuredOp]) -> list[MeasuredOp]:
    """The entries by which models are judged, with the cases that were measured since the machine changed."""
    return [sure for entry in entries if is_held_out(entry.op.key) and (sure := entry.without_stale()).by_case]
