"""Which contender runs: the comparisons of one with the other, and the watch over the one that was kept.

As pure as `TuningMachine`, of which it is a part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.agenda import Agenda
from threadcast.runtime.tuning.best_so_far import BestSoFar
from threadcast.runtime.tuning.confirmation import Confirmation
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, plan_of
from threadcast.runtime.tuning.drift import Drift
from threadcast.runtime.tuning.duel import Duel
from threadcast.runtime.tuning.earlier_plans import EarlierPlans
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.guard import CLEAR
from threadcast.runtime.tuning.instructions import Instructions
from threadcast.runtime.tuning.states import Moves, State
from threadcast.runtime.tuning.variant_queue import VariantQueue


class Contest:
    """Compares contenders with the best so far, one after the other, and watches what was kept.

    It changes `moves`, `agenda` and `best`, which it shares with the search for plans; `queue` holds the variants that
    have a plan. `costs` says whether learning may take time to compare what was kept once more. `go_on(reason)`
    returns what follows when all contenders have been compared, or all plans have to be made anew.
    """

    def __init__(
        self, moves: Moves, agenda: Agenda, best: BestSoFar, queue: VariantQueue, costs: ExpectedCosts,
        *, go_on: Callable[[str], Instructions],
    ) -> None:  # fmt: skip
        self._moves, self._agenda, self._best, self._queue, self._go_on = moves, agenda, best, queue, go_on
        self.refused: dict[ContenderId, str] = {}
        """Contenders whose results differ from the default's, each with the difference in words."""
        self.duel: Duel | None = None
        """The comparison of the best with another contender; None while there is none."""
        self.earlier = EarlierPlans(queue)
        self._to_open: deque[ContenderId] = deque()
        self._slower: ContenderId | None = None
        """What is not compared once the plan that was found last has been: it is known to be slower than that."""
        self._alone = False
        """Whether contenders are compared in rows of steps alone, because what was kept is doubted."""
        self._drift = Drift()
        self._costs, self._confirmation = costs, Confirmation(costs)

    @property
    def challenger(self) -> ContenderId | None:
        """The contender that is being compared with the best; None while none is."""
        return None if self.duel is None else self.duel.challenger

    @property
    def contenders(self) -> tuple[ContenderId, ...]:
        """The contenders that can run the next steps: the best, and the one that is being compared with it."""
        if self._moves.state in (State.STARTING, State.CLOSED):
            return ()
        return (self._best.id,) if self.challenger is None else (self._best.id, self.challenger)

    @property
    def confirmed(self) -> bool:
        """Whether steps of what was kept have shown that it is as fast alone as it promised, or can show nothing."""
        return self._confirmation.over

    def resume(self, stored: Variant, step_s: float, *, fuse: bool) -> Instructions:
        """Run the stored plan of this variant, whose steps took `step_s` seconds, and watch whether they still do.

        With `fuse` fused operators have not been tried beside it.
        """
        self.earlier.resumes(fuse=fuse)
        self._moves.to(State.RESUMED, f"a stored plan took {step_s:.3g} s")
        return self._run_alone(plan_of(stored), expected_s=step_s)

    def compare_like(self, like: Variant) -> Instructions:
        """Compare a plan of calls of other shapes, for this variant, with the default."""
        self.earlier.compares_like(like)
        return self.compare("calls of other shapes have a plan", (plan_of(like),))

    def compare(
        self, reason: str, contenders: Iterable[ContenderId], *, slower: ContenderId | None = None
    ) -> Instructions:
        """Compare these contenders one after the other, each with the best before it.

        `slower` is one of them that is known to be slower than the first.
        """
        self._moves.to(State.COMPARING, reason)
        self._to_open, self._slower = deque(contenders), slower
        return self._next_challenger()

    def opened(self, contender: ContenderId) -> Instructions:
        """Answer to `Open`: `contender` is ready to run."""
        self._agenda.answer("opened", do.Open)
        self.duel = Duel(self._best.id, contender, alone=self._alone)
        return ()

    def found_backend(self, contender: ContenderId) -> Instructions:
        """Report that a backend is ready to run, which is then compared with the best contender."""
        self._moves.expect("a backend", State.SETTLED)
        self.duel = Duel(self._best.id, contender)
        return self._compare_further(f"{contender} is ready")

    def stale(self, contender: ContenderId) -> Instructions:
        """Report that `contender`, one of `contenders`, no longer has the default's results: the model was changed."""
        if contender is DEFAULT or contender not in self.contenders or self._agenda.awaited is not None:
            raise self._moves.illegal(f"{contender} is stale")
        reason = f"{contender} is stale"
        if self._moves.state is State.RESUMED:
            return self._search_anew(reason)
        return self._without(contender, reason)

    def refuse(self, contender: ContenderId, difference: str) -> Instructions:
        """Never run `contender` again, whose results differ from the default's; `difference` says how."""
        if contender is DEFAULT:
            raise self._moves.illegal(f"the default differs from itself: {difference}")
        refuse = do.Refuse(contender, difference)
        if self._moves.state is State.RESUMED or contender in self.earlier.contenders:  # made now it is another
            return refuse, *self._search_anew(difference)
        self.refused[contender] = difference
        if contender.variant is not None:
            self._queue.drop(contender.variant)
        return refuse, *self._without(contender, difference)

    def _without(self, contender: ContenderId, reason: str) -> Instructions:
        """Go on without `contender`, one of `contenders`, which must not run the next step."""
        if contender == self.challenger:
            return self._next_challenger()
        if self._moves.state not in (State.COMPARING, State.SETTLED):  # a search goes on
            self._best.become(DEFAULT)
            return ()
        return self._compare_again(reason, map(plan_of, self._queue.planned))

    def _next_challenger(self) -> Instructions:
        if self.challenger is not None:
            self.earlier.compared(self.challenger, self._best.id, self._best.step_s)
        self.duel = None
        if not self._to_open:
            self._alone = False
            return self._go_on("compared")
        self._agenda.pending = do.Open(self._to_open.popleft())
        return ()

    def observe(self, duel: Duel, *, started_s: float, seconds: float) -> Instructions:
        """Record a step of the comparison that is under way, of so many seconds; `started_s` is a time of a clock."""
        verdict = duel.observe(started_s=started_s, seconds=seconds)
        if verdict is None:
            return ()
        slower, self._slower = self._slower, None
        if slower is not None and slower in self._to_open:
            self._to_open.remove(slower)
        if verdict.kept == "plan":
            self._confirmation.won(duel.new, duel.base, gain=verdict.gain, step_s=duel.new_s)
            self._best.loses_to(duel.new, duel.new_s)
        elif self._best.id != duel.base:
            self._lose(duel.new)
            return do.Unsettle(), do.Compared(duel.new, verdict), *self._next_challenger()
        return do.Compared(duel.new, verdict), *self._next_challenger()

    def _lose(self, doubted: ContenderId) -> None:
        """Have the default run, which is not slower than what was kept, and the second best compared with it."""
        second = self._best.second(self._queue.planned, self.refused)
        self._best.become(DEFAULT)
        if self.earlier.is_like(doubted):
            self.earlier.drop_like()
        elif second is not DEFAULT:
            self._to_open = deque((second,))

    def settle(self, reason: str | None = None) -> Instructions:
        """Run the best from now on, and watch it; nothing else is compared."""
        self._moves.to(State.SETTLED, reason or f"{self._best.id} is the fastest")
        self._offer_fused()
        return self._run_alone(self._best.id, expected_s=None)

    def _offer_fused(self) -> None:
        """Have the fastest variant tried with fused operators, as soon as learning may take the time."""
        variant = None if self.earlier.like is not None else self._queue.fused()
        if variant is not None:
            self._agenda.pending = do.Capture(variant)

    def _run_alone(self, contender: ContenderId, *, expected_s: float | None) -> Instructions:
        self._best.become(contender, expected_s)
        self._drift = Drift(expected_s)
        self._confirmation.settled(contender, self._best.second(self._queue.planned, self.refused))
        return (do.Settle(contender),)

    def watch(self, seconds: float, *, all_cores: bool, alone: bool, eager_s: float | None) -> Instructions:
        """Record a step of what was kept, where it runs alone; for the arguments see `TuningMachine.observe`.

        `eager_s` are the seconds of a step in eager PyTorch.
        """
        if self._moves.state not in (State.RESUMED, State.SETTLED):
            return ()
        found = self._watch_drift(seconds, all_cores=all_cores, eager_s=eager_s)
        if found or not alone or self._moves.state is not State.SETTLED:
            return found
        return self._confirm(seconds, all_cores=all_cores, eager_s=eager_s)

    def _watch_drift(self, seconds: float, *, all_cores: bool, eager_s: float | None) -> Instructions:
        """Store a plan once its first steps alone tell how fast it is; compare again what has become slower.

        What is clearly faster than the default's steps were runs on meanwhile: a machine that was busy for a moment
        would leave calls to the default until learning may lose time.
        """
        pace = self._drift.observe(seconds, all_cores=all_cores)
        if pace is None:
            return ()
        best, resumed = self._best.id, self._moves.state is State.RESUMED
        if pace.first_s is None:
            return () if best.variant is None else (do.Store(best.variant, pace.step_s),)
        if not pace.slower:
            if resumed:
                self._settle_on_stored()
            return ()
        reason = f"a step takes {pace.step_s:.3g} s, at first {pace.first_s:.3g} s"
        if resumed:
            return self._compare_stored(reason)
        if self.earlier.is_like(best):
            return self._search_anew(reason)
        if best is not DEFAULT and eager_s is not None and CLEAR * pace.step_s < eager_s:
            return self._compare_with_default(reason) if self._costs.allows_confirming(pace.step_s, eager_s) else ()
        return self._compare_again(reason, map(plan_of, self._queue.planned) if best is DEFAULT else (best,))

    def _confirm(self, seconds: float, *, all_cores: bool, eager_s: float | None) -> Instructions:
        """Compare what was kept once more where its steps alone do not confirm its comparison."""
        doubt = self._confirmation.observe(seconds, all_cores=all_cores, eager_s=eager_s)
        if doubt is None:
            return ()
        if doubt.other is DEFAULT:
            return self._compare_with_default(doubt.reason)
        self._alone = True
        further = self._compare_further(doubt.reason)
        self._agenda.pending = do.Open(doubt.other)
        return further

    def _compare_with_default(self, reason: str) -> Instructions:
        """Compare the best, which runs meanwhile, with the default once more."""
        further = self._compare_further(reason)
        self._alone = True
        self.duel = Duel(self._best.id, DEFAULT, alone=True)
        return further

    def _compare_further(self, reason: str) -> Instructions:
        """Compare the best with one more contender."""
        self._moves.to(State.COMPARING, reason)
        self._agenda.pending = None
        return (do.Unsettle(further=True),)

    def _settle_on_stored(self) -> None:
        """Settle on the stored plan, which is as fast as it was."""
        assert self._best.id.variant is not None
        self.earlier.keep_stored(self._best.id.variant, self._best.step_s)
        self._moves.to(State.SETTLED, "the stored plan is as fast as it was")
        self._offer_fused()

    def _compare_stored(self, reason: str) -> Instructions:
        """Compare the stored plan with the default: perhaps the machine as a whole is slower than it was."""
        stored = self._best.id
        assert stored.variant is not None
        self.earlier.compares_stored(stored.variant)
        return self._compare_again(reason, (stored,))

    def _compare_again(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        self.duel = self._agenda.pending = None
        self._best.become(DEFAULT)
        return do.Unsettle(), *self.compare(reason, tuple(contenders))

    def _search_anew(self, reason: str) -> Instructions:
        """Forget the plan that ran, which was not made for this call now, and make all plans."""
        self.earlier.drop()
        self.duel = self._agenda.pending = None
        self._to_open.clear()
        self._alone = False
        self._best.become(DEFAULT)
        return do.Unsettle(forget=True), *self._go_on(reason)
