"""Seconds that the parts of learning are expected to cost the caller, before `TuningMachine` begins them."""

from __future__ import annotations

import math
from collections.abc import Callable

from threadcast.core.gains import PAIRS_AT_LEAST
from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.guard import ALONE, CONFIDENT_PAIRS
from threadcast.runtime.tuning.instructions import Instruction
from threadcast.runtime.tuning.plan_search import Look, PlanSearch
from threadcast.runtime.tuning.warm_up import WarmUp

CHECK_STEPS = 2.5
"""Steps of eager PyTorch that comparing the results of a first step with eager's is expected to take."""
ASIDE_STEPS = 1.0
"""Steps of eager PyTorch that copying what a look changes, and setting it back, is expected to take."""
UNKNOWN = 0.5
"""Share by which a step is expected to be slower than the best way known where nothing is known of it."""
BESIDE_S = 3.0
"""Seconds that compilers or the search for backends are expected to cost calls on 2 cores, until they end. At low
priority they still make all threads of an operator wait now and then: calls took 10 to 25 % longer for as long as they
ran (decision 9). On more cores the part of one core counts. A convention."""
GIVE_BACK_S = 0.5
"""Seconds that storing measurements is expected to cost calls on 2 cores: as long as a process loads what it needs for
that, steps took 1.5 to 2.5 times as long."""
PLANNING_S = 0.2
"""Seconds that making a plan is expected to cost steps, by the cores that it uses. A convention."""


class ExpectedCosts:
    """What learning is expected to cost one kind of call, in seconds beyond those of the best way known.

    `looks` is the schedule of looks, which run `aside` or in place of eager PyTorch. `warm_up` knows how long eager
    PyTorch takes, and counts costs.
    """

    def __init__(self, looks: LookSchedule, warm_up: WarmUp, *, aside: bool = False) -> None:
        self._looks, self._warm_up, self._aside = looks, warm_up, aside
        self.capture_s = 0.0
        """Seconds that the last capture cost the caller."""
        self.unchecked = True
        """Whether the results of the next step of the search would be compared with PyTorch's."""
        self._beside_s = BESIDE_S / max(1, looks.cases[0].threads - 1)
        """Seconds that processes beside the calls are expected to cost these."""
        self._give_back_s = GIVE_BACK_S / max(1, looks.cases[0].threads - 1)
        self._compiled: set[Variant] = set()
        """Variants for which compilers were started."""

    def compiling_s(self, variant: Variant) -> float:
        """Return what compiling the loops of `variant` is expected to cost, 0 where that was counted."""
        return self._beside_s if variant.fused and variant not in self._compiled else 0.0

    def compiling(self, variant: Variant) -> None:
        """Count what compilers cost that were started for `variant`, once."""
        if cost_s := self.compiling_s(variant):
            self._compiled.add(variant)
            self._warm_up.charge(cost_s)

    def instruction_s(
        self, instruction: Instruction, best_s: float, plan_s: Callable[[Variant], float | None], *, compiled: bool
    ) -> float:
        """Return the cost of an instruction, and of what it begins.

        `best_s` are seconds of a step by the best way known, `plan_s` by a variant's plan. `compiled`: whether what a
        capture needs is compiled.
        """
        match instruction:
            case do.Capture(variant):
                return self.capture_s + (0.0 if compiled else self.compiling_s(variant))
            case do.MakePlan():
                return PLANNING_S
            case do.Open(contender):
                planned_s = None if contender.variant is None else plan_s(contender.variant)
                return self.comparison_s(planned_s, best_s)
        return 0.0

    def allows_search(self) -> bool:
        """Return whether a search for backends may begin beside the calls."""
        return self._warm_up.allows(self._beside_s)

    def searching(self) -> None:
        """Count what a search for backends costs that has begun."""
        self._warm_up.charge(self._beside_s)

    def give_back(self) -> bool:
        """Return whether a process may store measurements beside the calls; if so, count its cost."""
        if not self._warm_up.allows(self._give_back_s):
            return False
        self._warm_up.charge(self._give_back_s)
        return True

    def comparison_s(self, planned_s: float | None, best_s: float) -> float:
        """Return the cost of comparing a contender whose step takes `planned_s` seconds (None: not known)."""
        step_s = best_s * (1 + UNKNOWN) if planned_s is None or math.isinf(planned_s) else planned_s
        return 2 * PAIRS_AT_LEAST * max(0.0, step_s - best_s)

    def allows_confirming(self, step_s: float, other_s: float) -> bool:
        """Return whether what takes `step_s` seconds may be compared, in rows of steps, with what takes `other_s`."""
        row_s = ALONE.block_s(other_s) + max(ALONE.quiet_s, other_s) / 2  # each is two blocks long
        return self._warm_up.allows(CONFIDENT_PAIRS * row_s * max(0.0, 1 - step_s / other_s))

    def search_s(self, search: PlanSearch, best_s: float) -> float:
        """Return the cost of the next look or trial."""
        runner, step_s = search.next_runner(), (1 + UNKNOWN) * best_s
        if search.broken_off_s is not None:
            step_s = search.broken_off_s
        elif isinstance(runner, Look) and search.look_s:
            step_s = search.look_s[0] * self._looks.slowdown(runner.number)
        elif not isinstance(runner, Look):
            step_s = search.predicted_s[-1] * (1 + UNKNOWN / 2)
        eager_s = self._warm_up.eager_s or 0.0
        if self._aside and isinstance(runner, Look):
            return self._looks.runs(step_s) * step_s + (1 + ASIDE_STEPS) * eager_s - min(best_s, eager_s)
        check_s = CHECK_STEPS * eager_s if self.unchecked else 0.0
        return check_s + search.steps(step_s) * max(0.0, step_s - best_s)
