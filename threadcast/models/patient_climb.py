"""A climb in few steps that goes on past the first rise of time, and interpolates on a scale that fits curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from threadcast.core import Case, Curve, Machine, Measurement, Op
from threadcast.core.arguments import check, check_whole
from threadcast.models.hill_climb import Climb, next_case
from threadcast.models.interpolation import Between, curve_through, measured_knots


class PatientClimb(Climb):
    """Doubles the thread count, goes on past `patience` rises, then halves the gaps next to its fastest point.

    Thread counts double from 1 up to the machine's, in each affinity, until time has not fallen below the best for
    `patience` counts in a row; the largest count is measured too. Then `refine` counts halfway (by ratio) between the
    fastest point and its neighbours are measured, the wider gap first. Between points time is linear in 1/p
    ("reciprocal": exact for perfect scaling) or in the logarithms of both ("log": exact for any power of p). Differs
    from the climb of Liu et al. 2018, III-C, which has even steps and stops at the first rise: real curves are jagged
    (prime counts, edges of sockets), so that the first rise is seldom the minimum.
    """

    name, options = "patient_climb", ("patience", "refine", "between")

    def __init__(self, *, patience: int = 2, refine: int = 2, between: Between = "log") -> None:
        check_whole("patience", patience)
        check_whole("refine", refine, 0)
        check(between in get_args(Between), "between", between, f"one of {', '.join(get_args(Between))}")
        self.patience, self.refine, self.between = patience, refine, between

    def propose_among(
        self, op: Op, observed: Sequence[Measurement], machine: Machine, cases: Sequence[Case]
    ) -> Case | None:
        """The next case of the climb with cache sharing and its refinement; after these, of the climb without."""
        return next_case(observed, cases, self._next)

    def _next(self, counts: Sequence[int], times: Mapping[int, float]) -> int | None:
        if not counts:
            return None
        best, since = float("inf"), 0
        ladder = doubling(counts)
        for step in ladder:
            if since >= self.patience:
                break
            if step not in times:
                return step
            best, since = (times[step], 0) if times[step] < best else (best, since + 1)
        if ladder[-1] not in times:
            return ladder[-1]
        if sum(count in times for count in counts if count not in ladder) >= self.refine:
            return None
        return halfway(counts, times)

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        """Measured points, and lines between them; see `interpolation.curve_through`."""
        return curve_through(measured_knots(observed), cases, between=self.between)


def doubling(counts: Sequence[int]) -> tuple[int, ...]:
    """The thread counts of the climb: the first of the ascending `counts`, each that is at least twice the one chosen
    before, and the last."""
    steps = list(counts[:1])
    for count in counts:
        if count >= 2 * steps[-1]:
            steps.append(count)
    if steps[-1] != counts[-1]:
        steps.append(counts[-1])
    return tuple(steps)


def halfway(counts: Sequence[int], times: Mapping[int, float]) -> int | None:
    """The count nearest to the geometric middle of the widest gap next to the fastest point (of equal gaps, the one to
    the faster neighbour); None where no count is between."""
    measured = sorted(times)
    at = measured.index(min(measured, key=lambda count: (times[count], count)))
    beside = [measured[i] for i in (at - 1, at + 1) if 0 <= i < len(measured)]
    best = measured[at]
    for neighbour in sorted(beside, key=lambda count: (-max(best / count, count / best), times[count])):
        low, high = sorted((best, neighbour))
        between = [count for count in counts if low < count < high]
        if between:
            return min(between, key=lambda count: abs(count * count - low * high))
    return None
