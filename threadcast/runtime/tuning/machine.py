"""Tuning one kind of call, as a pure state machine: events come in, instructions go out.

No clock, file, thread or tensor is in here. `TuningMachine.next_runner` says what runs the next step; `observe` and the
other events answer with what has to be done before the step after it, which `tuning.Tuning` carries out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from statistics import median

from threadcast.core import Case
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, eager_in, plan_of
from threadcast.runtime.tuning.guard import Guard
from threadcast.runtime.tuning.instructions import (
    Capture,
    Compared,
    ContenderStep,
    GiveUp,
    Instruction,
    Instructions,
    MakePlan,
    Open,
    OpenBackend,
    Refuse,
    Runner,
    Searched,
    SearchStep,
    Settle,
    Store,
    Unsettle,
    UsePlan,
)  # fmt: skip
from threadcast.runtime.tuning.plan_search import PlanSearch
from threadcast.runtime.tuning.states import Moves, State

DRIFT_STEPS = 50
"""Steps whose median is held against what they took at first."""
DRIFT_LIMIT = 1.25
"""Times what steps took at first, from which on the contenders are compared again."""


class TuningMachine:
    """Decides what runs each step of one kind of call.

    `formats` are the memory formats to try, in this order, `cases` the thread counts at which operators are timed.
    `fuse` also tries the fastest variant with fused operators; `backends` also compares what `OpenBackend` gives.

    `start` comes first. Then for each step: carry out all instructions, and what their answers instruct; tell of a plan
    that was made, and of contenders that have become `stale`; run what `next_runner` names; `observe` the step, unless
    it raised. IllegalMove, with the history, where events do not come in this order.
    """

    def __init__(self, formats: Sequence[MemoryFormat], cases: Sequence[Case], *, fuse: bool, backends: bool) -> None:
        self.moves = Moves()
        self.best: ContenderId = DEFAULT
        """What ran fastest when last compared."""
        self.challenger: ContenderId | None = None
        """What is compared with the best now."""
        self.variants: list[Variant] = []
        """Those that have a plan; once all are searched, the fastest first."""
        self.refused: dict[ContenderId, str] = {}
        """Contenders whose results differ from the default's, and how."""
        self.steps: defaultdict[State, int] = defaultdict(int)
        """Steps of the caller's that each state took."""
        self.seconds: defaultdict[State, float] = defaultdict(float)
        """Seconds that these steps took."""
        self.awaited: Instruction | None = None
        """The instruction whose answer must come before the next step."""
        self._formats, self._cases = tuple(formats), tuple(cases)
        self._fuse, self._backends = fuse, backends
        self._to_search: deque[Variant] = deque()
        self._variant = Variant(self._formats[0])
        """The one that is captured or searched now."""
        self._search: PlanSearch | None = None
        self._step_s: dict[Variant, float] = {}
        self._to_open: deque[ContenderId] = deque()
        self._guard = Guard()
        self._expected_s: float | None = None
        """Seconds of a settled step at first."""
        self._recent_s: list[float] = []
        self._alone = ContenderStep(DEFAULT)
        """What runs where nothing is searched or compared."""

    @property
    def state(self) -> State:
        """What steps are used for now."""
        return self.moves.state

    @property
    def contenders(self) -> tuple[ContenderId, ...]:
        """Those that run steps now: one, or the two that are compared; none during a search."""
        if self.state is State.COMPARING:
            return (self.best,) if self.challenger is None else (self.best, self.challenger)
        return (self.best,) if self._search is None else ()

    def start(self, *, stored: Variant | None = None, step_s: float = 0.0) -> Instructions:
        """Begin, with the `stored` plan of this variant, whose steps took `step_s`, where there is one."""
        self.moves.expect("start", State.STARTING)
        if stored is None:
            return self._search_all()
        self.moves.to(State.RESUMED, f"a stored plan took {step_s:.3g} s")
        return self._run_alone(plan_of(stored), expected_s=step_s)

    def next_runner(self) -> Runner:
        """What runs the next step; the same until an event comes."""
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
        """Take note of a step of `next_runner`'s, which took so many seconds and started at `started_s` of a clock.

        `difference` says how results of the contender that was checked against the default differ from the default's,
        None where they do not or were not checked. While two are compared this is the challenger. It does not run
        again, nor does any plan of the variant whose plan is searched for, where that one differs. Without `all_cores`
        the step had fewer cores than its plan is for, and says nothing of drift.
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
        """The graph that was awaited is there."""
        self._answer("captured", Capture)
        self._search = PlanSearch(self._cases, self.moves)
        return ()

    def not_captured(self) -> Instructions:
        """The awaited variant has no graph, or none of its own."""
        self._answer("not captured", Capture)
        return self._search_next()

    def planned(self, predicted_s: float) -> Instructions:
        """The plan that was to be made is there, and predicts so many seconds a step."""
        self._searching("planned").planned(predicted_s)
        return ()

    def nothing_to_correct(self) -> Instructions:
        """Trying the last plan showed nothing that would change the next one."""
        search = self._searching("nothing to correct")
        search.nothing_to_correct()
        return self._end_of(search)

    def opened(self, contender: ContenderId) -> Instructions:
        """The contender that was awaited can run."""
        self._answer("opened", Open, OpenBackend)
        self.challenger, self._guard = contender, Guard()
        return ()

    def no_backend(self) -> Instructions:
        """There are no more backends."""
        self._answer("no backend", OpenBackend)
        self._backends = False
        return self._settle()

    def stale(self, contender: ContenderId) -> Instructions:
        """This contender, which runs now, no longer does what the default does: the model was changed."""
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
        return (GiveUp(reason),)

    def close(self) -> None:
        """Run nothing any more; closing again does nothing."""
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

    def _search_all(self) -> Instructions:
        self._to_search = deque(map(Variant, self._formats))
        return self._search_next()

    def _search_next(self) -> Instructions:
        if not self._to_search and self.variants and self._fuse:
            self._fuse = False
            fastest = min(self.variants, key=self._step_s.__getitem__)
            self._to_search.append(Variant(fastest.memory_format, fused=True))
        if self._to_search:
            self._variant = self._to_search.popleft()
            return self._await(Capture(self._variant))
        if not self.variants:
            differences = (f"its results are not PyTorch's: {difference}" for difference in self.refused.values())
            return self.give_up(next(differences, "no graph could be captured"))
        self.variants.sort(key=self._step_s.__getitem__)
        plans = map(plan_of, self.variants)
        formats = {variant.memory_format for variant in self.variants}
        eager = [eager_in(one) for one in self._formats if one in formats and one is not MemoryFormat.AS_GIVEN]
        return Searched(tuple(self.variants)), *self._compare("all plans were tried", (*plans, *eager))

    def _observe_search(self, runner: SearchStep, seconds: float) -> Instructions:
        search = self._searching("a step of the search")
        if search.observe(seconds):
            return (MakePlan(runner.variant),)
        return self._end_of(search) if search.best is not None else ()

    def _end_of(self, search: PlanSearch) -> Instructions:
        assert search.best is not None
        self._search = None
        self._step_s[self._variant] = search.step_s[search.best]
        self.variants.append(self._variant)
        return UsePlan(self._variant, search.best), *self._search_next()

    def _compare(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        """Compare these, one after the other, each with the best before it; the default is the first best."""
        self.moves.to(State.COMPARING, reason)
        self.best, self.challenger = DEFAULT, None
        self._to_open = deque(contenders)
        return self._next_challenger()

    def _next_challenger(self) -> Instructions:
        self.challenger = None
        if self._to_open:
            return self._await(Open(self._to_open.popleft()))
        return self._await(OpenBackend()) if self._backends else self._settle()

    def _observe_comparison(self, challenger: ContenderId, started_s: float, seconds: float) -> Instructions:
        self._guard.observe(started_s=started_s, seconds=seconds)
        verdict = self._guard.verdict
        if verdict is None:
            return ()
        compared = Compared(challenger, verdict)
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
        self._expected_s = expected_s
        self._recent_s.clear()
        return (Settle(contender),)

    def _observe_alone(self, seconds: float, *, all_cores: bool) -> Instructions:
        if not all_cores:
            self._recent_s.clear()
            return ()
        self._recent_s.append(seconds)
        if len(self._recent_s) < DRIFT_STEPS:
            return ()
        now_s = median(self._recent_s)
        self._recent_s.clear()
        if self._expected_s is None:
            self._expected_s = now_s
            variant = self.best.variant
            return () if variant is None else (Store(variant, now_s),)
        if now_s <= DRIFT_LIMIT * self._expected_s:
            return ()
        reason = f"a step takes {now_s:.3g} s, at first {self._expected_s:.3g} s"
        if self.state is State.RESUMED:
            return self._search_anew(reason)
        plans = map(plan_of, self.variants)
        return self._compare_again(reason, plans if self.best is DEFAULT else (self.best,))

    def _compare_again(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        return Unsettle(), *self._compare(reason, contenders)

    def _search_anew(self, reason: str) -> Instructions:
        self.best = DEFAULT
        return Unsettle(forget=True), *self._search_all()

    def _refuse_variant(self, variant: Variant, difference: str) -> Instructions:
        self._search = None
        self.refused[plan_of(variant)] = difference
        return Refuse(plan_of(variant), difference), *self._search_next()

    def _refuse(self, contender: ContenderId, difference: str) -> Instructions:
        if contender is DEFAULT:
            raise self.moves.illegal(f"the default differs from itself: {difference}")
        refuse = Refuse(contender, difference)
        if self.state is State.RESUMED:  # a plan that is made now is another
            return refuse, *self._search_anew(difference)
        self.refused[contender] = difference
        self.variants = [variant for variant in self.variants if plan_of(variant) != contender]
        if self.state is State.COMPARING:
            return refuse, *self._next_challenger()
        return refuse, *self._compare_again(difference, map(plan_of, self.variants))
