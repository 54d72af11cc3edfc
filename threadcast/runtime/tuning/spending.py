"""Whether learning may take more of the calls' time now, and what each call has lost by it."""

from __future__ import annotations

from threadcast.runtime.tuning.attempts import Attempts, Part
from threadcast.runtime.tuning.best_so_far import BestSoFar
from threadcast.runtime.tuning.contender_id import DEFAULT
from threadcast.runtime.tuning.duel import Duel
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.instructions import ContenderStep, Instruction, Runner, SearchStep
from threadcast.runtime.tuning.variant_queue import VariantQueue
from threadcast.runtime.tuning.warm_up import WarmUp


class Spending:
    """Weighs what the next part of learning is expected to cost, by `costs`, against what `warm_up` still allows.

    `best` is the best way known, against which time is lost; `queue` knows how long a step takes by each plan.
    """

    def __init__(self, costs: ExpectedCosts, warm_up: WarmUp, best: BestSoFar, queue: VariantQueue) -> None:
        self._costs, self._warm_up, self._best, self._queue = costs, warm_up, best, queue
        self._attempts = Attempts()

    def allows(self, instruction: Instruction, *, compiled: bool) -> bool:
        """Return whether learning may take the time of an instruction, and of what it begins.

        `compiled`: whether what a capture needs is compiled.
        """
        return self._warm_up.allows(
            self._costs.instruction_s(instruction, self._best.step_s or 0.0, self._queue.seconds, compiled=compiled)
        )

    def holds_back(self, part: Part | None) -> bool:
        """Return whether the best way runs the next step in place of `part`, a search or comparison, if any.

        Before a look, trial or pair begins, it does where learning may not lose what that is expected to cost and what
        the last attempt lost beyond that. Once one has begun, it does where learning has lost more than it may.
        Comparing what does not seem to be slower costs nothing.
        """
        if part is None or (isinstance(part, Duel) and part.pair_cost_s <= 0):
            return False
        if part.begun:
            return self._warm_up.overspent
        besides_s = self._attempts.besides_s(part)
        if isinstance(part, Duel):
            return not self._warm_up.allows(part.pair_cost_s + besides_s)
        if not part.at_start:
            return False
        return not self._warm_up.allows(self._costs.search_s(part, self._best.step_s or 0.0) + besides_s)

    def count(self, runner: Runner, seconds: float, call_s: float, *, planning: bool, disturbed: bool = False) -> float:
        """Record a call for `warm_up`, and return what it lost: `seconds` of a step by `runner`, `call_s` of the call.

        What the best way takes longer than before is not lost, the machine is slower; only what came before and after
        its step is. While a plan is being made (`planning`) it may run with fewer cores; so it may while one is made
        for other calls (`disturbed`), which lose that time.
        """
        by_best = isinstance(runner, ContenderStep) and runner.contender == self._best.id
        best_s = seconds if by_best and not planning else self._best.step_s
        lost_s = 0.0 if best_s is None else call_s - best_s
        self._warm_up.ran(call_s, lost_s=lost_s)
        if isinstance(runner, ContenderStep) and not (planning or disturbed):
            if runner.contender is DEFAULT:
                self._warm_up.ran_eager(seconds)
            elif by_best:
                self._best.ran(seconds)
        if isinstance(runner, SearchStep) and self._costs.unchecked:
            self._costs.unchecked = False
            self._costs.capture_s = max(self._costs.capture_s, call_s - seconds)
        return lost_s

    def ran(self, part: Part, lost_s: float) -> None:
        """Record that a step of this part, which has observed it, lost so many seconds."""
        self._attempts.ran(part, lost_s)

    def break_off(self, part: Part, *, of_itself: bool = True) -> None:
        """Have what has begun of this part, if anything, begin once more; `of_itself`: as it has lost too much."""
        part.break_off()
        if of_itself:
            self._attempts.broke_off()
