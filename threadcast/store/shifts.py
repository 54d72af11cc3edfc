"""By how much times have probably changed where nobody has measured since, from where somebody has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from threadcast.core.case import Case
from threadcast.store.changes import Course

MARGIN = math.log(1.25)
"""By how much the shifts of two cases, or of two ops, may differ beside what was seen, in log seconds; smaller shifts
cast no doubt on others. A convention."""

AGREED = 3
"""With fewer witnesses of a change than so many, what was not measured since may as well not have changed."""


class Shift(NamedTuple):
    """The most probable change of log seconds, and the lowest and the highest one that is to be reckoned with."""

    log_s: float
    low: float
    high: float


def spanning(log_s: float, seen: Sequence[float], *, believed: bool) -> Shift:
    """The shift of something that was not measured, where witnesses have `seen` these ones. It may be none at all,
    unless it is `believed` that the change reaches it."""
    span = [*seen, log_s] if believed else [*seen, log_s, 0.0]
    return Shift(log_s, min(span) - MARGIN, max(span) + MARGIN)


def shift_of(case: Case, course: Course, others: Sequence[tuple[Case, Course]]) -> tuple[float, Shift | None]:
    """The time in seconds up to which a series is known to have kept its level, and None; or the shift that it has
    probably had after its last point, by what other series of its op (`others`, it may be among them) have had since.

    Between two thread counts shifts are interpolated over their logarithms, beyond the outermost ones they stay the
    same. Where series of the same affinity tell something, others do not count.
    """
    witnesses = [
        (at, other.last_s, shift)
        for at, other in others
        if other is not course and (shift := other.shift_since(course.last_s, course.ended)) is not None
    ]
    until_s = max([course.last_s, *(last_s for _, last_s, _ in witnesses)])
    if not any(abs(shift) > MARGIN for *_, shift in witnesses):
        return until_s, None
    alike = [one for one in witnesses if one[0].affinity is case.affinity] or witnesses
    line = sorted((math.log(at.threads), shift) for at, _, shift in alike)
    here = math.log(case.threads)
    below, above = ([s for x, s in line if x <= here][-1:], [s for x, s in line if x >= here][:1])
    if below and above:
        left = max(x for x, _ in line if x <= here)
        right = min(x for x, _ in line if x >= here)
        share = 0.5 if right == left else (here - left) / (right - left)
        guess, seen = below[0] + share * (above[0] - below[0]), [*below, *above]
    else:
        guess, seen = (below or above)[0], [shift for *_, shift in witnesses]
    if below and above and all(abs(shift) <= MARGIN for shift in seen):
        return until_s, None  # the change is elsewhere, and both neighbours were measured since
    return until_s, spanning(guess, seen, believed=bool(below and above) or len(witnesses) >= AGREED)
