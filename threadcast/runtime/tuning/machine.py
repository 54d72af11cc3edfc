"""Tuning of one kind of call as a pure state machine: events come in, instructions go out.

It uses no clock, file, thread or tensor. `TuningMachine.next_runner` returns what runs the next step. `due`, `observe`
and the other event methods return instructions that `tuning.Tuning` carries out before the next step. What finds plans
is here; what compares them and watches the fastest is in `contest.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.agenda import Agenda
from threadcast.runtime.tuning.best_so_far import BestSoFar
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, eager_in, plan_of
from threadcast.runtime.tuning.contest import Contest
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.instructions import ContenderStep, Instructions, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import Look, Meanwhile, PlanSearch, Try
from threadcast.runtime.tuning.put_off import PutOff
from threadcast.runtime.tuning.spending import Spending
from threadcast.runtime.tuning.states import Move, Moves, SearchStage, State
from threadcast.runtime.tuning.variant_queue import VariantQueue
from threadcast.runtime.tuning.warm_up import WarmUp

FORECAST_S = 4.0
"""Seconds of looks above which operators are forecast from what is known of others first. A convention: a process that
loads the models and a store and forecasts 300 ops takes about as long on one core."""


class TuningMachine:
    """Decides what runs each step of one kind of call.

    `formats` are the memory formats to try, in this order; `looks` says at which thread counts operators are timed.
    With `fuse` the fastest variant is also tried with fused operators, once the fastest plan without them runs. With
    `known` something is known of operators on this machine, so that a plan is made before any look. With `aside` looks
    run within the caller's steps, all of one in one, and do not take their place while a plan is made. `warm_up` counts
    what learning costs, and says how much it may cost; without it, anything. `moved` is called at each change of state.

    Call `start` first. Then, for each step: carry out all instructions, and those that their answers return; call
    `planned` or another answer if a plan has been made, `contest.stale` for contenders that have become so, and `due`;
    run what `next_runner` returns; call `observe`, unless the step raised. An event out of this order raises
    IllegalMove, with the history of moves.
    """

    def __init__(
        self, formats: Sequence[MemoryFormat], looks: LookSchedule, *, fuse: bool, known: bool = False,
        aside: bool = False, warm_up: WarmUp | None = None, moved: Callable[[Move], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.moves = Moves(moved=moved)
        self.agenda = Agenda(self.moves)
        self.warm_up = WarmUp() if warm_up is None else warm_up
        self.steps: defaultdict[State, int] = defaultdict(int)
        """Number of the caller's steps that ran in each state."""
        self.seconds: defaultdict[State, float] = defaultdict(float)
        """Seconds that the caller's steps took in each state."""
        self._looks, self._known, self._aside = looks, known, aside
        self._queue = VariantQueue(formats, fuse=fuse)
        self._best = BestSoFar(self.warm_up)
        self._costs = ExpectedCosts(looks, self.warm_up, aside=aside)
        self._spending = Spending(self._costs, self.warm_up, self._best, self._queue)
        self.contest = Contest(self.moves, self.agenda, self._best, self._queue, self._costs, go_on=self._next_variant)
        """Compares contenders, and watches what was kept; events that concern these are its methods."""
        self._search: PlanSearch | None = None
        """The search for a plan; None while there is none."""
        self._variant = Variant(formats[0])
        """The variant that is being searched."""
        self._put_off = PutOff(self._best, self.warm_up)
        self._after_backends = False
        """Whether what is pending comes after the search for backends."""
        self._chosen: tuple[Runner, bool, bool] | None = None
        """What `next_runner` named last, whether it was the best only because learning has to wait, and whether a plan
        was being made for other calls. Calls of other kinds may change meanwhile what learning may lose."""

    @property
    def state(self) -> State:
        """The current state: what steps are used for now."""
        return self.moves.state

    @property
    def best(self) -> ContenderId:
        """The fastest contender so far."""
        return self._best.id

    @property
    def awaits_plan(self) -> bool:
        """Whether a plan is being made now, in a process of its own."""
        return self.state is State.PLANNING and self.agenda.pending is None

    @property
    def planning(self) -> bool:
        """Whether a plan is being made now, in a process that uses a core."""
        return self.awaits_plan and self._search is not None and not self._search.planner_yields

    @property
    def rests(self) -> bool:
        """Whether the next step is the best's, and nothing else is tried before it."""
        if self.state is not State.SETTLED or self.deferred:
            return self.state is State.GIVEN_UP
        return self.agenda.empty or (self.agenda.awaited is None and self.held_back)

    @property
    def deferred(self) -> bool:
        """Whether the first plan is still to be searched, once the search for backends is over."""
        return self._put_off.wanted

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that have a plan, the fastest first."""
        return self._queue.planned

    @property
    def tried_fused(self) -> bool:
        """Whether fused operators have been tried, or are not to be."""
        return self._queue.fused() is None

    @property
    def held_back(self) -> bool:
        """Whether the best way runs the next step only because learning may not take the time for anything else."""
        if self.agenda.awaited is not None or not self.warm_up.ready:
            return False
        if self.agenda.pending is not None:
            return not self._spending.allows(self.agenda.pending, compiled=True)
        return self._spending.holds_back(self._search or self.contest.duel)

    def start(
        self, *, stored: Variant | None = None, step_s: float = 0.0, fuse: bool = True, like: Variant | None = None
    ) -> Instructions:
        """Begin. If there is a stored plan, `stored` is its variant, and `step_s` the seconds that its steps took.

        With `fuse` fused operators have not been tried beside the stored plan. `like` is the variant of a plan of calls
        of other shapes: if it is faster than the default, nothing is measured.
        """
        self.moves.expect("start", State.STARTING)
        if like is not None:
            return self.contest.compare_like(like)
        if stored is None:
            return self._next_variant("nothing is known")
        return self.contest.resume(stored, step_s, fuse=fuse)

    def due(
        self, *, compiled: bool = True, planner_free: bool = True, backends: SearchStage = SearchStage.OVER,
        plan_first: Callable[[], bool] = lambda: False,
    ) -> Instructions:  # fmt: skip
        """Return the instruction whose turn has come, if learning may take the time for it now.

        `compiled`: whether all that `agenda.variant` needs is compiled. `planner_free`: whether a plan can be begun.
        `backends`: how far the search for backends is. `plan_first`: whether one plan gains much, and sooner than a
        backend of this graph can be built.
        """
        if self._backends_first(backends, plan_first):
            return self._wait_for_backends()
        idle = self.state is State.SETTLED and self.agenda.empty
        if idle and self._put_off.is_over(backends) and self.deferred:
            self.agenda.pending = self._put_off.capture
        pending = self.agenda.pending
        further = self.state is State.SETTLED and self.agenda.variant is not None
        self._after_backends = further and self._put_off.holds(backends)
        if pending is None or self.agenda.awaited is not None or self._after_backends:
            return ()
        if not (self.warm_up.ready or isinstance(pending, do.Open) or self.state is State.SETTLED):
            return ()
        if isinstance(pending, do.MakePlan) and not planner_free:
            return ()
        if not self._spending.allows(pending, compiled=compiled):
            return ()
        self.agenda.begin(pending)
        return (pending,)

    def _backends_first(self, backends: SearchStage, plan_first: Callable[[], bool]) -> bool:
        """Whether to search for backends before the next plan is searched."""
        if self.state is State.WAITING:
            begins = self.agenda.variant is not None
        else:
            idle = self.agenda.awaited is None and not self.awaits_plan
            begins = self._search is not None and self._search.untouched and idle and not self._variant.fused
        return begins and self._put_off.is_for(backends, plan_first, other=self._has_other, planned=bool(self.variants))

    def _wait_for_backends(self) -> Instructions:
        """Let the fastest way so far run while backends are searched."""
        self._put_off.put_off(self.agenda.variant or self._variant)
        left_out = () if self._search is None else (do.LeaveOut(self._variant),)
        self._search = self.agenda.pending = None
        return *left_out, *self._next_variant("backends are tried first")

    def next_runner(self, *, disturbed: bool = False) -> Runner:
        """Return what runs the next step; `observe` records a step by what was named last.

        With `disturbed` a plan is being made on one of the cores, beside which steps tell little of how fast they are:
        unless it is this call's own, the best runs.
        """
        if self.agenda.awaited is not None:
            raise self.moves.illegal(f"a step before {self.agenda.awaited} was answered")
        self.moves.expect("a step", *(state for state in State if state not in (State.STARTING, State.CLOSED)))
        duel, disturbed = self.contest.duel, disturbed and not self.awaits_plan
        part = self._search or duel
        held_back = (disturbed and part is not None) or self._spending.holds_back(part)
        runner: Runner = ContenderStep(self.best)
        if self._search is not None:
            runner = self._next_of_search(self._search, held_back=held_back)
        elif duel is not None:
            runner = duel.best_alone if held_back else duel.next_runner()
        self._chosen = runner, held_back, disturbed
        return runner

    def _next_of_search(self, search: PlanSearch, *, held_back: bool) -> Runner:
        step: Look | Try | Meanwhile | None
        if self.state is State.PLANNING:
            step = search.meanwhile if self.awaits_plan else None
        else:
            step = None if held_back else search.next_runner()
        return ContenderStep(self.best) if step is None else SearchStep(self._variant, step)

    def observe(
        self, seconds: float, *, started_s: float = 0.0, call_s: float | None = None, difference: str | None = None,
        all_cores: bool = True, alone: bool = True,
    ) -> Instructions:  # fmt: skip
        """Record a step that `next_runner` named: `seconds` that it took, and when it started (`started_s` of a clock).

        `call_s` are the seconds of the whole call, with all that was done before and after the step. `difference` tells
        in words how the step's results differ from the default's; None where they do not differ or were not checked.
        Such a contender (the new one, while two are compared) does not run again. During a search the whole variant
        is given up. Pass `all_cores=False` for a step that had fewer cores than its plan is for: it does not count as
        slower than before, and `alone=False` for one beside compilers or a search for backends: it says nothing of how
        fast what was kept is alone, and is no reason for a doubt.
        """
        if self._chosen is None:
            self.next_runner()
        assert self._chosen is not None
        (runner, held_back, disturbed), duel, self._chosen = self._chosen, self.contest.duel, None
        self.steps[self.state] += 1
        self.seconds[self.state] += seconds
        call_s = seconds if call_s is None else call_s
        lost_s = self._spending.count(runner, seconds, call_s, planning=self.planning, disturbed=disturbed)
        if isinstance(runner, SearchStep):
            if difference is not None:
                return self._refuse_variant(runner.variant, difference)
            if isinstance(runner.step, Meanwhile):
                return ()
            search = self._searching("a step of the search")
            found = self._observe_search(search, seconds)
            self._spending.ran(search, lost_s)
            return found
        if difference is not None:
            return self.contest.refuse(self.best if duel is None or held_back else duel.new, difference)
        part = self._search or duel
        if part is not None and held_back:
            self._spending.break_off(part, of_itself=not disturbed)
            return ()
        if duel is not None:
            found = self.contest.observe(duel, started_s=started_s, seconds=seconds)
            self._spending.ran(duel, lost_s)
            return found
        all_cores, alone = all_cores and not disturbed, alone and not disturbed
        return self.contest.watch(seconds, all_cores=all_cores, alone=alone, eager_s=self.warm_up.eager_s)

    def captured(self) -> Instructions:
        """Answer to `Capture`: the graph was captured."""
        self._variant = self._captured("captured")
        looks_s = self._looks.calls * (self.warm_up.eager_s or 0.0)
        known = self._known and looks_s > FORECAST_S
        unsettled = (do.Unsettle(further=True),) if self.state is State.SETTLED else ()
        self._search = PlanSearch(self._looks, self.moves, aside=self._aside, known=known)
        self._costs.unchecked = True
        if known:
            self.agenda.pending = do.MakePlan(self._variant)
        return unsettled

    def not_captured(self) -> Instructions:
        """Answer to `Capture`: the variant has no graph, or none that differs from other variants'."""
        variant = self._captured("not captured")
        if self.state is State.SETTLED and (variant.fused or self._queue.searched):
            return ()
        return self._next_variant("no graph")

    def _captured(self, event: str) -> Variant:
        variant = self.agenda.answer(event, do.Capture).variant
        self._put_off.answered(variant)
        if variant.fused:
            self._queue.no_fused()
        return variant

    def later(self) -> Instructions:
        """Answer to `Capture`: what the graph needs is still being made."""
        self.agenda.pending = capture = self.agenda.answer("later", do.Capture)
        self._costs.compiling(capture.variant)
        return ()

    def accepts(self, pessimistic_s: float) -> bool:
        """Return whether a plan that has been made is to be tried, rather than operators to be looked at before.

        A plan from forecasts alone is, if its pessimistic forecast of `pessimistic_s` seconds beats the best way known.
        """
        search, best_s = self._searching("a plan"), self._best.step_s
        return bool(search.look_s) or best_s is None or pessimistic_s < best_s

    def planned(self, predicted_s: float) -> Instructions:
        """Answer to `MakePlan`: the plan is made, and predicts `predicted_s` seconds for a step."""
        search, best_s = self._searching("planned"), self._best.step_s
        if best_s is not None and search.too_slow(predicted_s, best_s) and self._has_other:
            return do.LeaveOut(self._variant), *self._next_variant(f"a plan predicts {predicted_s:.3g} s")
        search.planned(predicted_s)
        if search.best is not None:
            return self._end_of(search)
        self._costs.unchecked = True
        return ()

    def look_again(self) -> Instructions:
        """Answer to `MakePlan`: operators have to be looked at once more before."""
        self._searching("look again").look_again()
        self._costs.unchecked = True
        return ()

    def planner_yields(self) -> None:
        """Report that the process that makes the plan gets from now on only CPU time that no step wants."""
        if not self.planning:
            raise self.moves.illegal("the planner yields")
        self._searching("the planner yields").planner_yields = True

    def nothing_to_correct(self) -> Instructions:
        """Answer to `MakePlan`: trying the last plan showed nothing that would change the next plan."""
        search = self._searching("nothing to correct")
        search.nothing_to_correct()
        return self._end_of(search)

    def not_planned(self, reason: str) -> Instructions:
        """Answer to `MakePlan`: no plan can be made, for this reason. What was found before goes on; the default runs
        for good where that is nothing."""
        search = self._searching("not planned")
        if search.step_s:
            search.nothing_to_correct()
            return self._end_of(search)
        if self._has_other:
            return do.LeaveOut(self._variant), *self._next_variant(reason)
        return self.give_up(reason)

    def may_search_backends(self) -> bool:
        """Return whether a search for backends may begin now."""
        idle = self.agenda.empty or self._after_backends
        return self.state is State.SETTLED and idle and self._costs.allows_search()

    def searches_backends(self) -> None:
        """Report that a search for backends has begun: what it is expected to cost is counted."""
        self._costs.searching()

    def may_give_back(self) -> bool:
        """Return whether what looks have shown may be stored now; if so, count what that is expected to cost."""
        return self.state is State.SETTLED and self.agenda.awaited is None and self._costs.give_back()

    def give_up(self, reason: str) -> Instructions:
        """Run the default for good; a second time does nothing."""
        if self.state is State.GIVEN_UP:
            return ()
        self.moves.to(State.GIVEN_UP, reason)
        self._stop()
        self._best.become(DEFAULT)
        return (do.GiveUp(reason),)

    def close(self) -> None:
        """End tuning: no step runs any more. Closing again does nothing."""
        if self.state is not State.CLOSED:
            self.moves.to(State.CLOSED, "closed")
            self._stop()

    def _stop(self) -> None:
        self._search = self.contest.duel = None
        self.agenda.clear()

    def _searching(self, event: str) -> PlanSearch:
        if self._search is None or not self.agenda.empty:
            raise self.moves.illegal(event)
        return self._search

    def _next_variant(self, reason: str) -> Instructions:
        """Wait until the next variant can be captured; settle where there is none."""
        self._search = None
        if self.state is not State.WAITING:
            self.moves.to(State.WAITING, reason)
        if self._put_off.capture is not None:
            return self.contest.settle(f"{self.best} runs until a plan is searched")
        variant = None if self.contest.earlier.like is not None else self._queue.next()
        if variant is not None:
            self.agenda.pending = do.Capture(variant)
            return ()
        if not self._queue.searched and self.best is DEFAULT:
            refused = self.contest.refused.values()
            differences = (f"its results are not PyTorch's: {difference}" for difference in refused)
            return self.give_up(next(differences, "no graph could be captured"))
        return self.contest.settle()

    def _observe_search(self, search: PlanSearch, seconds: float) -> Instructions:
        before = len(search.look_s)
        wants_plan = search.observe(seconds)
        if len(search.look_s) > before:
            self._costs.unchecked = True
            best_s = self._best.step_s
            if best_s is not None and search.hopeless(best_s) and self._has_other:
                return do.LeaveOut(self._variant), *self._next_variant("the first look was far slower")
        if wants_plan:
            self.agenda.pending = do.MakePlan(self._variant)
            return ()
        return self._end_of(search) if search.best is not None else ()

    @property
    def _has_other(self) -> bool:
        """Whether there is another plan, or something faster than the default."""
        return bool(self.variants) or self.best is not DEFAULT

    def _end_of(self, search: PlanSearch) -> Instructions:
        """Have the plan that was found compared, and eager PyTorch in the same memory format."""
        assert search.best is not None
        self._search = None
        variant, best = self._variant, search.best
        self._queue.add(variant, search.step_s[best])
        contenders = [plan_of(variant)]
        slower: ContenderId | None = None
        if variant.memory_format is not MemoryFormat.AS_GIVEN and not variant.fused:
            contenders.append(eager_in(variant.memory_format))
            slower = contenders[1] if search.far_faster else None
        return do.UsePlan(variant, best), *self.contest.compare("a plan is found", contenders, slower=slower)

    def _refuse_variant(self, variant: Variant, difference: str) -> Instructions:
        self.contest.refused[plan_of(variant)] = difference
        return do.Refuse(plan_of(variant), difference), *self._next_variant(difference)
