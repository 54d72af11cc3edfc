"""Tuning of one kind of call as a pure state machine: events come in, instructions go out.

It uses no clock, file, thread or tensor. `TuningMachine.next_runner` returns what runs the next step. `observe` and the
other event methods return instructions that `tuning.Tuning` carries out before the step after that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

from threadcast.core import Case
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, eager_in, plan_of
from threadcast.runtime.tuning.drift import Drift
from threadcast.runtime.tuning.guard import Guard
from threadcast.runtime.tuning.instructions import ContenderStep, Instruction, Instructions, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import PlanSearch
from threadcast.runtime.tuning.states import Moves, State
from threadcast.runtime.tuning.variant_queue import VariantQueue


class TuningMachine:
    """Decides what runs each step of one kind of call.

    `formats` are the memory formats to try, in this order; `cases` are the thread counts at which operators are timed.
    With `fuse` the fastest variant is also tried with fused operators.

    Call `start` first. Then, for each step: carry out all instructions, and those that their answers return; call
    `planned` if a plan has been made, and `stale` for contenders that have become so; run what `next_runner` returns;
    call `observe`, unless the step raised. An event out of this order raises IllegalMove, with the history of moves.
    """

    def __init__(self, formats: Sequence[MemoryFormat], cases: Sequence[Case], *, fuse: bool) -> None:
        self.moves = Moves()
        self.best: ContenderId = DEFAULT
        """The fastest contender of the last comparison."""
        self.challenger: ContenderId | None = None
        """The contender that is being compared with the best; None while none is."""
        self.refused: dict[ContenderId, str] = {}
        """Contenders whose results differ from the default's, each with the difference in words."""
        self.steps: defaultdict[State, int] = defaultdict(int)
        """Number of the caller's steps that ran in each state."""
        self.seconds: defaultdict[State, float] = defaultdict(float)
        """Seconds that the caller's steps took in each state."""
        self.awaited: Instruction | None = None
        """The instruction that must be answered before the next step; None where there is none."""
        self._formats, self._cases = tuple(formats), tuple(cases)
        self._queue = VariantQueue(formats, fuse=fuse)
        self._variant = Variant(formats[0])
        """The variant that is being captured or searched."""
        self._search: PlanSearch | None = None
        self._to_open: deque[ContenderId] = deque()
        self._backends = True
        """Whether there are backends that have not been compared."""
        self._guard = Guard()
        self._drift = Drift()
        self._alone = ContenderStep(DEFAULT)
        """What runs steps while nothing is searched or compared."""

    @property
    def state(self) -> State:
        """The current state: what steps are used for now."""
        return self.moves.state

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that have a plan, the fastest first."""
        return self._queue.planned

    @property
    def contenders(self) -> tuple[ContenderId, ...]:
        """The contenders that run steps now: one, or the two being compared; none during a search."""
        if self.state is State.COMPARING:
            return (self.best,) if self.challenger is None else (self.best, self.challenger)
        return (self.best,) if self._search is None else ()

    def start(self, *, stored: Variant | None = None, step_s: float = 0.0) -> Instructions:
        """Begin. If there is a stored plan, `stored` is its variant, and `step_s` the seconds that its steps took."""
        self.moves.expect("start", State.STARTING)
        if stored is None:
            return self._search_next()
        self.moves.to(State.RESUMED, f"a stored plan took {step_s:.3g} s")
        return self._run_alone(plan_of(stored), expected_s=step_s)

    def next_runner(self) -> Runner:
        """Return what runs the next step. It stays the same until the next event."""
        if self.awaited is not None:
            raise self.moves.illegal(f"a step before {self.awaited} was answered")
        if self._search is not None:
            return SearchStep(self._variant, self._search.next_runner())
        if self.challenger is not None:
            contender = self.best if self._guard.next_runner() == "default" else self.challenger
            return ContenderStep(contender, rest=self._guard.needs_rest)
        self.moves.expect("a step", State.RESUMED, State.SETTLED, State.GIVEN_UP)
        return self._alone

    def observe(
        self, seconds: float, *, started_s: float = 0.0, difference: str | None = None, all_cores: bool = True
    ) -> Instructions:
        """Record a step that `next_runner` named: `seconds` that it took, and when it started (`started_s` of a clock).

        `difference` tells in words how the step's results differ from the default's; None where they do not differ or
        were not checked. Such a contender (the challenger, while two are compared) does not run again. During a search
        the whole variant is given up. Pass `all_cores=False` for a step that had fewer cores than its plan is for: it
        does not count as slower than before.
        """
        runner = self.next_runner()
        self.steps[self.state] += 1
        self.seconds[self.state] += seconds
        if isinstance(runner, SearchStep):
            if difference is not None:
                return self._refuse_variant(runner.variant, difference)
            return self._observe_search(runner, seconds)
        if difference is not None:
            return self._refuse(self.challenger or self.best, difference)
        if self.challenger is not None:
            return self._observe_comparison(self.challenger, started_s, seconds)
        if self.state is State.GIVEN_UP:
            return ()
        return self._observe_alone(seconds, all_cores=all_cores)

    def captured(self) -> Instructions:
        """Answer to `Capture`: the graph was captured."""
        self._answer("captured", do.Capture)
        self._search = PlanSearch(self._cases, self.moves)
        return ()

    def not_captured(self) -> Instructions:
        """Answer to `Capture`: the variant has no graph, or none that differs from other variants'."""
        self._answer("not captured", do.Capture)
        return self._search_next()

    def planned(self, predicted_s: float) -> Instructions:
        """Answer to `MakePlan`: the plan is made, and predicts `predicted_s` seconds for a step."""
        self._searching("planned").planned(predicted_s)
        return ()

    def nothing_to_correct(self) -> Instructions:
        """Answer to `MakePlan`: trying the last plan showed nothing that would change the next plan."""
        search = self._searching("nothing to correct")
        search.nothing_to_correct()
        return self._end_of(search)

    def opened(self, contender: ContenderId) -> Instructions:
        """Answer to `Open` or `OpenBackend`: `contender` is ready to run."""
        self._answer("opened", do.Open, do.OpenBackend)
        self.challenger, self._guard = contender, Guard()
        return ()

    def no_backend(self) -> Instructions:
        """Answer to `OpenBackend`: there are no more backends."""
        self._answer("no backend", do.OpenBackend)
        self._backends = False
        return self._settle()

    def stale(self, contender: ContenderId) -> Instructions:
        """Report that `contender`, one of `contenders`, no longer has the default's results: the model was changed."""
        if contender is DEFAULT or contender not in self.contenders or self.awaited is not None:
            raise self.moves.illegal(f"{contender} is stale")
        if self.state is State.RESUMED:
            return self._search_anew(f"{contender} is stale")
        if contender == self.challenger:
            return self._settle()  # what would come next was made at the same time
        return self._compare_again(f"{contender} is stale", map(plan_of, self.variants))

    def give_up(self, reason: str) -> Instructions:
        """Run the default for good."""
        self.moves.to(State.GIVEN_UP, reason)
        self._stop()
        self.best, self._alone = DEFAULT, ContenderStep(DEFAULT)
        return (do.GiveUp(reason),)

    def close(self) -> None:
        """End tuning: no step runs any more. Closing again does nothing."""
        if self.state is not State.CLOSED:
            self.moves.to(State.CLOSED, "closed")
            self._stop()

    def _stop(self) -> None:
        self._search = self.challenger = self.awaited = None

    def _answer(self, event: str, *instructions: type) -> None:
        if not isinstance(self.awaited, instructions):
            raise self.moves.illegal(f"{event}, awaiting {self.awaited}")
        self.awaited = None

    def _await(self, instruction: Instruction) -> Instructions:
        self.awaited = instruction
        return (instruction,)

    def _searching(self, event: str) -> PlanSearch:
        if self._search is None or self.awaited is not None:
            raise self.moves.illegal(event)
        return self._search

    def _search_next(self) -> Instructions:
        variant = self._queue.next()
        if variant is not None:
            self._variant = variant
            return self._await(do.Capture(variant))
        if not self.variants:
            differences = (f"its results are not PyTorch's: {difference}" for difference in self.refused.values())
            return self.give_up(next(differences, "no graph could be captured"))
        plans = map(plan_of, self.variants)
        formats = {variant.memory_format for variant in self.variants}
        eager = [eager_in(one) for one in self._formats if one in formats and one is not MemoryFormat.AS_GIVEN]
        return do.Searched(self.variants), *self._compare("all plans were tried", (*plans, *eager))

    def _observe_search(self, runner: SearchStep, seconds: float) -> Instructions:
        search = self._searching("a step of the search")
        if search.observe(seconds):
            return (do.MakePlan(runner.variant),)
        return self._end_of(search) if search.best is not None else ()

    def _end_of(self, search: PlanSearch) -> Instructions:
        assert search.best is not None
        self._search = None
        self._queue.add(self._variant, search.step_s[search.best])
        return do.UsePlan(self._variant, search.best), *self._search_next()

    def _compare(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        """Compare these contenders one after the other, each with the best before it, beginning with the default."""
        self.moves.to(State.COMPARING, reason)
        self.best, self.challenger = DEFAULT, None
        self._to_open = deque(contenders)
        return self._next_challenger()

    def _next_challenger(self) -> Instructions:
        self.challenger = None
        if self._to_open:
            return self._await(do.Open(self._to_open.popleft()))
        return self._await(do.OpenBackend()) if self._backends else self._settle()

    def _observe_comparison(self, challenger: ContenderId, started_s: float, seconds: float) -> Instructions:
        self._guard.observe(started_s=started_s, seconds=seconds)
        verdict = self._guard.verdict
        if verdict is None:
            return ()
        compared = do.Compared(challenger, verdict)
        if verdict.kept == "plan":
            self.best = challenger
        return compared, *self._next_challenger()

    def _settle(self) -> Instructions:
        self.challenger = None
        self._backends = False  # compared once; the next comparisons are of plans
        self.moves.to(State.SETTLED, f"{self.best} is the fastest")
        return self._run_alone(self.best, expected_s=None)

    def _run_alone(self, contender: ContenderId, *, expected_s: float | None) -> Instructions:
        self.best, self._alone = contender, ContenderStep(contender)
        self._drift = Drift(expected_s)
        return (do.Settle(contender),)

    def _observe_alone(self, seconds: float, *, all_cores: bool) -> Instructions:
        pace = self._drift.observe(seconds, all_cores=all_cores)
        if pace is None:
            return ()
        if pace.first_s is None:
            variant = self.best.variant
            return () if variant is None else (do.Store(variant, pace.step_s),)
        if not pace.slower:
            return ()
        reason = f"a step takes {pace.step_s:.3g} s, at first {pace.first_s:.3g} s"
        if self.state is State.RESUMED:
            return self._search_anew(reason)
        plans = map(plan_of, self.variants)
        return self._compare_again(reason, plans if self.best is DEFAULT else (self.best,))

    def _compare_again(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        return do.Unsettle(), *self._compare(reason, contenders)

    def _search_anew(self, reason: str) -> Instructions:
        self.best = DEFAULT
        return do.Unsettle(forget=True), *self._search_next()

    def _refuse_variant(self, variant: Variant, difference: str) -> Instructions:
        self._search = None
        self.refused[plan_of(variant)] = difference
        return do.Refuse(plan_of(variant), difference), *self._search_next()

    def _refuse(self, contender: ContenderId, difference: str) -> Instructions:
        if contender is DEFAULT:
            raise self.moves.illegal(f"the default differs from itself: {difference}")
        refuse = do.Refuse(contender, difference)
        if self.state is State.RESUMED:  # a plan that is made now is another
            return refuse, *self._search_anew(difference)
        self.refused[contender] = difference
        if contender.variant is not None:
            self._queue.drop(contender.variant)
        if self.state is State.COMPARING:
            return refuse, *self._next_challenger()
        return refuse, *self._compare_again(difference, map(plan_of, self.variants))
