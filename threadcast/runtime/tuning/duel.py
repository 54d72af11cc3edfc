"""Two contenders that are compared in the caller's steps: by turns, or in longer rows of steps where each is alone."""

from __future__ import annotations

from dataclasses import replace

from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind
from threadcast.runtime.tuning.guard import ALONE, Guard, Side, Verdict
from threadcast.runtime.tuning.instructions import ContenderStep


class Duel:
    """Compares `challenger` with `best`. The new one of both must be faster beyond doubt, or after all pairs by far
    in the median, to be kept: the challenger, or `best` where the default challenges it once more.

    `alone`: in rows of steps, each of which begins when the other has come to rest. So are backends, whose threads are
    their own: by short turns OpenVINO took 8.5 ms for a step of Llama that took 5.5 ms alone (decision 59).
    """

    def __init__(self, best: ContenderId, challenger: ContenderId, *, alone: bool = False) -> None:
        self.best, self.challenger = best, challenger
        self.base, self.new = (challenger, best) if challenger is DEFAULT else (best, challenger)
        if alone or Kind.BACKEND in (best.kind, challenger.kind):
            self._guard = compared_alone()
        else:
            self._guard = Guard()

    def next_runner(self) -> ContenderStep:
        """Return what runs the next step."""
        contender = self.base if self._guard.next_runner() == "default" else self.new
        return ContenderStep(contender, rest=self._guard.needs_rest)

    @property
    def best_alone(self) -> ContenderStep:
        """A step of the best in place of one that is compared; then call `break_off`."""
        return ContenderStep(self.best, rest=self.best == self.base and self._guard.plan_ran_last)

    @property
    def begun(self) -> bool:
        """Whether a pair of blocks has begun, and is not complete."""
        return self._guard.begun

    def break_off(self) -> None:
        """Have the pair that has begun, if any, begin once more: the best has run in between."""
        self._guard.break_off()

    @property
    def pair_cost_s(self) -> float:
        """Seconds by which the next pair is expected to take longer than the best alone; 0 where nothing is known."""
        best: Side = "default" if self.base == self.best else "plan"
        other: Side = "plan" if best == "default" else "default"
        best_s, other_s = self._guard.step_s(best), self._guard.step_s(other)
        if best_s is None or other_s is None or best_s >= other_s:
            return 0.0
        return self._guard.pair_s(other) * (1 - best_s / other_s)

    def observe(self, *, started_s: float, seconds: float) -> Verdict | None:
        """Record the step that `next_runner` named; return the verdict on `new` against `base` once there is one."""
        self._guard.observe(started_s=started_s, seconds=seconds)
        verdict = self._guard.verdict
        return None if verdict is None else replace(verdict, over=str(self.base))

    @property
    def new_s(self) -> float:
        """Median seconds of a step by `new`, once there is a verdict."""
        step_s = self._guard.step_s("plan")
        assert step_s is not None
        return step_s


def compared_alone() -> Guard:
    """Return a guard that compares two ways in rows of steps, each of which begins when the other has come to rest."""
    return Guard(at_once=False, rows=ALONE)
