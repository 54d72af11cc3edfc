"""Tuning of one kind of call as a pure state machine: events come in, instructions go out.

It uses no clock, file, thread or tensor. `TuningMachine.next_runner` returns what runs the next step. `due`, `observe`
and the other event methods return instructions that `tuning.Tuning` carries out before the next step.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence

from threadcast.runtime.plans.curves_in_step import LookSchedule
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning import instructions as do
from threadcast.runtime.tuning.attempts import Attempts
from threadcast.runtime.tuning.best_so_far import BestSoFar
from threadcast.runtime.tuning.confirmation import Confirmation
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, eager_in, plan_of
from threadcast.runtime.tuning.drift import Drift
from threadcast.runtime.tuning.duel import Duel
from threadcast.runtime.tuning.expected_costs import ExpectedCosts
from threadcast.runtime.tuning.instructions import ContenderStep, Instruction, Instructions, Runner, SearchStep
from threadcast.runtime.tuning.plan_search import Look, Meanwhile, PlanSearch
from threadcast.runtime.tuning.states import Move, Moves, State
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
    `planned` or another answer if a plan has been made, `stale` for contenders that have become so, and `due`; run what
    `next_runner` returns; call `observe`, unless the step raised. An event out of this order raises IllegalMove, with
    the history of moves.
    """

    def __init__(
        self, formats: Sequence[MemoryFormat], looks: LookSchedule, *, fuse: bool, known: bool = False,
        aside: bool = False, warm_up: WarmUp | None = None, moved: Callable[[Move], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.moves = Moves(moved=moved)
        self.warm_up = WarmUp() if warm_up is None else warm_up
        self._best = BestSoFar()
        self.refused: dict[ContenderId, str] = {}
        """Contenders whose results differ from the default's, each with the difference in words."""
        self.steps: defaultdict[State, int] = defaultdict(int)
        """Number of the caller's steps that ran in each state."""
        self.seconds: defaultdict[State, float] = defaultdict(float)
        """Seconds that the caller's steps took in each state."""
        self.awaited: Instruction | None = None
        """The instruction that must be answered before the next step; None where there is none."""
        self._looks, self._known, self._aside = looks, known, aside
        self._queue = VariantQueue(formats, fuse=fuse)
        self._variant = Variant(formats[0])
        """The variant that is being captured or searched."""
        self._search: PlanSearch | None = None
        self._pending: Instruction | None = None
        """What comes next, as soon as learning may take the time."""
        self._to_open: deque[ContenderId] = deque()
        self._duel: Duel | None = None
        """The comparison of the best with another contender; None while there is none."""
        self._slower: ContenderId | None = None
        """What is not compared once the plan that was found last has been: it is known to be slower than that."""
        self._alone = False
        """Whether contenders are compared in rows of steps alone, because what was kept is doubted."""
        self._chosen: tuple[Runner, bool] | None = None
        """What `next_runner` named last, and whether it was the best only because learning may not lose more. Calls of
        other kinds may change meanwhile what learning may lose."""
        self._attempts = Attempts()
        self._drift = Drift()
        self._costs = ExpectedCosts(looks, self.warm_up, aside=aside)
        self._confirmation = Confirmation(self._costs)
        self._like: Variant | None = None
        """The variant of a plan of calls of other shapes, while that is compared and for as long as it runs."""
        self._stored: Variant | None = None
        """The variant of a stored plan that has become slower, while it is compared with the default."""
        self._planner_yields = False
        """Whether the process that makes a plan gets only CPU time that no step wants."""
        self._stored_fuse = False
        """Whether fused operators are still to be tried beside the stored plan."""

    @property
    def state(self) -> State:
        """The current state: what steps are used for now."""
        return self.moves.state

    @property
    def best(self) -> ContenderId:
        """The fastest contender so far."""
        return self._best.id

    @property
    def challenger(self) -> ContenderId | None:
        """The contender that is being compared with the best; None while none is."""
        return None if self._duel is None else self._duel.challenger

    @property
    def confirmed(self) -> bool:
        """Whether steps of what was kept have shown that it is as fast alone as it promised, or can show nothing."""
        return self._confirmation.over

    @property
    def awaits_plan(self) -> bool:
        """Whether a plan is being made now, in a process of its own."""
        return self.state is State.PLANNING and self._pending is None

    @property
    def planning(self) -> bool:
        """Whether a plan is being made now, in a process that uses a core."""
        return self.awaits_plan and not self._planner_yields

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants that have a plan, the fastest first."""
        return self._queue.planned

    @property
    def tried_fused(self) -> bool:
        """Whether fused operators have been tried, or are not to be."""
        return self._queue.fused() is None

    @property
    def contenders(self) -> tuple[ContenderId, ...]:
        """The contenders that can run the next steps: the best, and the one that is being compared with it."""
        if self.state in (State.STARTING, State.CLOSED):
            return ()
        return (self.best,) if self.challenger is None else (self.best, self.challenger)

    @property
    def best_s(self) -> float | None:
        """Seconds of a step by the best contender; None where it is not known."""
        return self._best.step_s(self.warm_up.eager_s)

    def start(
        self, *, stored: Variant | None = None, step_s: float = 0.0, fuse: bool = True, like: Variant | None = None
    ) -> Instructions:
        """Begin. If there is a stored plan, `stored` is its variant, and `step_s` the seconds that its steps took.

        With `fuse` fused operators have not been tried beside the stored plan. `like` is the variant of a plan of calls
        of other shapes: if it is faster than the default, nothing is measured.
        """
        self.moves.expect("start", State.STARTING)
        if like is not None:
            self._like = like
            self._queue.add(like, math.inf)
            return self._compare("calls of other shapes have a plan", (plan_of(like),))
        if stored is None:
            return self._next_variant("nothing is known")
        self._stored_fuse = fuse
        self.moves.to(State.RESUMED, f"a stored plan took {step_s:.3g} s")
        return self._run_alone(plan_of(stored), expected_s=step_s)

    @property
    def pending_variant(self) -> Variant | None:
        """The variant that is to be captured as soon as learning may take the time for it."""
        return self._pending.variant if isinstance(self._pending, do.Capture) else None

    @property
    def held_back(self) -> bool:
        """Whether the best way runs the next step only because learning may not take the time for anything else."""
        if self.awaited is not None or not self.warm_up.ready:
            return False
        if self._pending is not None:
            return not self._allows(self._pending, compiled=True)
        return self._holds_back(self._search or self._duel)

    def _holds_back(self, part: PlanSearch | Duel | None) -> bool:
        """Whether the best way runs the next step in place of what finds a plan, or compares: learning may not lose
        what the part's next look, trial or pair is expected to cost, besides what an attempt lost that was broken off,
        or has lost too much while one goes on. What is compared and does not seem to be slower costs nothing."""
        if part is None or (isinstance(part, Duel) and part.pair_cost_s <= 0):
            return False
        if part.begun:
            return self.warm_up.overspent
        besides_s = self._attempts.besides_s(part)
        if isinstance(part, Duel):
            return not self.warm_up.allows(part.pair_cost_s + besides_s)
        return part.at_start and not self.warm_up.allows(self._costs.search_s(part, self.best_s or 0.0) + besides_s)

    def due(self, *, compiled: bool = True, planner_free: bool = True) -> Instructions:
        """Return the instruction whose turn has come, if learning may take the time for it now.

        `compiled`: whether all that `pending_variant` needs is compiled. `planner_free`: whether a plan can be begun.
        """
        pending = self._pending
        if pending is None or self.awaited is not None:
            return ()
        if not (self.warm_up.ready or isinstance(pending, do.Open) or self.state is State.SETTLED):
            return ()
        if isinstance(pending, do.MakePlan) and not planner_free:
            return ()
        if not self._allows(pending, compiled=compiled):
            return ()
        self._pending, self._planner_yields = None, False
        if isinstance(pending, do.Capture | do.Open):
            self.awaited = pending
        return (pending,)

    def next_runner(self) -> Runner:
        """Return what runs the next step; `observe` records a step by what was named last."""
        if self.awaited is not None:
            raise self.moves.illegal(f"a step before {self.awaited} was answered")
        self.moves.expect("a step", *(state for state in State if state not in (State.STARTING, State.CLOSED)))
        part = self._search or self._duel
        held_back = self._holds_back(part)
        if self._search is not None:
            runner = self._next_of_search(self._search, held_back=held_back)
        elif self._duel is not None:
            runner = self._duel.best_alone if held_back else self._duel.next_runner()
        else:
            runner = ContenderStep(self.best)
        self._chosen = runner, held_back
        return runner

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
        (runner, held_back), part, self._chosen = self._chosen, self._search or self._duel, None
        self.steps[self.state] += 1
        self.seconds[self.state] += seconds
        lost_s = self._count(runner, seconds, seconds if call_s is None else call_s)
        if isinstance(runner, SearchStep):
            if difference is not None:
                return self._refuse_variant(runner.variant, difference)
            if isinstance(runner.step, Meanwhile):
                return ()
            search = self._searching("a step of the search")
            found = self._observe_search(search, seconds)
            self._attempts.ran(search, lost_s)
            return found
        if difference is not None:
            return self._refuse(self.best if self._duel is None or held_back else self._duel.new, difference)
        if part is not None and held_back:
            part.break_off()
            self._attempts.broke_off()
            return ()
        if self._duel is not None:
            duel = self._duel
            found = self._observe_comparison(duel, started_s, seconds)
            self._attempts.ran(duel, lost_s)
            return found
        if self.state in (State.RESUMED, State.SETTLED):
            found = self._observe_alone(seconds, all_cores=all_cores)
            return found or (self._confirm(seconds, all_cores=all_cores) if alone else ())
        return ()

    def captured(self) -> Instructions:
        """Answer to `Capture`: the graph was captured."""
        self._answer("captured", do.Capture)
        self._captured_fused()
        looks_s = self._looks.calls * (self.warm_up.eager_s or 0.0)
        known = self._known and looks_s > FORECAST_S
        unsettled = (do.Unsettle(further=True),) if self.state is State.SETTLED else ()
        self._search = PlanSearch(self._looks, self.moves, aside=self._aside, known=known)
        self._costs.unchecked = True
        if known:
            self._pending = do.MakePlan(self._variant)
        return unsettled

    def not_captured(self) -> Instructions:
        """Answer to `Capture`: the variant has no graph, or none that differs from other variants'."""
        self._answer("not captured", do.Capture)
        self._captured_fused()
        return () if self.state is State.SETTLED else self._next_variant("no graph")

    def _captured_fused(self) -> None:
        if self._variant.fused:
            self._queue.no_fused()

    def later(self) -> Instructions:
        """Answer to `Capture`: what the graph needs is still being made."""
        self._pending = self.awaited
        self._answer("later", do.Capture)
        self._costs.compiling(self._variant)
        return ()

    def accepts(self, pessimistic_s: float) -> bool:
        """Return whether a plan that has been made is to be tried, rather than operators to be looked at before.

        A plan from forecasts alone is, if its pessimistic forecast of `pessimistic_s` seconds beats the best way known.
        """
        search, best_s = self._searching("a plan"), self.best_s
        return bool(search.look_s) or best_s is None or pessimistic_s < best_s

    def planned(self, predicted_s: float) -> Instructions:
        """Answer to `MakePlan`: the plan is made, and predicts `predicted_s` seconds for a step."""
        search, best_s = self._searching("planned"), self.best_s
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
        self._planner_yields = True

    def nothing_to_correct(self) -> Instructions:
        """Answer to `MakePlan`: trying the last plan showed nothing that would change the next plan."""
        search = self._searching("nothing to correct")
        search.nothing_to_correct()
        return self._end_of(search)

    def opened(self, contender: ContenderId) -> Instructions:
        """Answer to `Open`: `contender` is ready to run."""
        self._answer("opened", do.Open)
        self._duel = Duel(self.best, contender, alone=self._alone)
        return ()

    def may_search_backends(self) -> bool:
        """Return whether a search for backends may begin now."""
        if self.state is not State.SETTLED or self._pending is not None or self.awaited is not None:
            return False
        return self._costs.allows_search()

    def searches_backends(self) -> None:
        """Report that a search for backends has begun: what it is expected to cost is counted."""
        self._costs.searching()

    def may_give_back(self) -> bool:
        """Return whether what looks have shown may be stored now; if so, count what that is expected to cost."""
        if self.state is not State.SETTLED or self.awaited is not None:
            return False
        return self._costs.give_back()

    def found_backend(self, contender: ContenderId) -> Instructions:
        """Report that a backend is ready to run, which is then compared with the best contender."""
        self.moves.expect("a backend", State.SETTLED)
        self._duel = Duel(self.best, contender)
        return self._compare_further(f"{contender} is ready")

    def stale(self, contender: ContenderId) -> Instructions:
        """Report that `contender`, one of `contenders`, no longer has the default's results: the model was changed."""
        if contender is DEFAULT or contender not in self.contenders or self.awaited is not None:
            raise self.moves.illegal(f"{contender} is stale")
        reason = f"{contender} is stale"
        if self.state is State.RESUMED:
            return self._search_anew(reason)
        if contender == self.challenger:
            return self._next_challenger()
        if self._search is not None or self.state is State.WAITING:
            self._best.become(DEFAULT)
            return ()
        return self._compare_again(reason, map(plan_of, self.variants))

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
        self._search = self._duel = self.awaited = self._pending = None

    def _answer(self, event: str, instruction: type) -> None:
        if not isinstance(self.awaited, instruction):
            raise self.moves.illegal(f"{event}, awaiting {self.awaited}")
        self.awaited = None

    def _searching(self, event: str) -> PlanSearch:
        if self._search is None or self.awaited is not None or self._pending is not None:
            raise self.moves.illegal(event)
        return self._search

    def _next_variant(self, reason: str) -> Instructions:
        """Wait until the next variant can be captured; settle where there is none."""
        self._search, self._alone = None, False
        if self.state is not State.WAITING:
            self.moves.to(State.WAITING, reason)
        variant = None if self._like is not None else self._queue.next()
        if variant is not None:
            self._variant, self._pending = variant, do.Capture(variant)
            return ()
        if not self._queue.searched:
            differences = (f"its results are not PyTorch's: {difference}" for difference in self.refused.values())
            return self.give_up(next(differences, "no graph could be captured"))
        return self._settle()

    def _next_of_search(self, search: PlanSearch, *, held_back: bool) -> Runner:
        if self.state is State.PLANNING and self._pending is not None:
            return ContenderStep(self.best)
        if self.state is State.PLANNING:
            if self._planner_yields or self._aside:
                return ContenderStep(self.best)
            # one that leaves a core to the planning process, which otherwise all threads wait for after every operator
            beside = [(step_s, i) for i, step_s in enumerate(search.look_s) if self._looks.leaves_core(i)]
            return SearchStep(self._variant, Meanwhile(Look(min(beside)[1]))) if beside else ContenderStep(self.best)
        if held_back:
            return ContenderStep(self.best)
        return SearchStep(self._variant, search.next_runner())

    def _count(self, runner: Runner, seconds: float, call_s: float) -> float:
        """Record a call for `warm_up`, and return what it lost. What the best way takes longer than before is not lost,
        the machine is slower; only what came before and after its step is. While a plan is being made it may run with
        fewer cores."""
        by_best = isinstance(runner, ContenderStep) and runner.contender == self.best
        best_s = seconds if by_best and not self.planning else self.best_s
        lost_s = 0.0 if best_s is None else call_s - best_s
        self.warm_up.ran(call_s, lost_s=lost_s)
        if isinstance(runner, ContenderStep) and not self.planning:
            if runner.contender is DEFAULT:
                self.warm_up.ran_eager(seconds)
            elif by_best:
                self._best.ran(seconds)
        if isinstance(runner, SearchStep) and self._costs.unchecked:
            self._costs.unchecked = False
            self._costs.capture_s = max(self._costs.capture_s, call_s - seconds)
        return lost_s

    def _allows(self, instruction: Instruction, *, compiled: bool) -> bool:
        """Whether learning may take the time of an instruction, and of what it begins."""
        return self.warm_up.allows(
            self._costs.instruction_s(instruction, self.best_s or 0.0, self._queue.seconds, compiled=compiled)
        )

    def _observe_search(self, search: PlanSearch, seconds: float) -> Instructions:
        before = len(search.look_s)
        wants_plan = search.observe(seconds)
        if len(search.look_s) > before:
            self._costs.unchecked = True
            best_s = self.best_s
            if best_s is not None and search.hopeless(best_s) and self._has_other:
                return do.LeaveOut(self._variant), *self._next_variant("the first look was far slower")
        if wants_plan:
            self._pending = do.MakePlan(self._variant)
            return ()
        return self._end_of(search) if search.best is not None else ()

    @property
    def _has_other(self) -> bool:
        """Whether there is another plan, or something faster than the default."""
        return bool(self.variants) or self.best is not DEFAULT

    def _end_of(self, search: PlanSearch) -> Instructions:
        assert search.best is not None
        self._search = None
        variant, best = self._variant, search.best
        self._queue.add(variant, search.step_s[best])
        contenders = [plan_of(variant)]
        self._slower = None
        if variant.memory_format is not MemoryFormat.AS_GIVEN and not variant.fused:
            contenders.append(eager_in(variant.memory_format))
            self._slower = contenders[1] if search.far_faster else None
        return do.UsePlan(variant, best), *self._compare("a plan is found", contenders)

    def _compare(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        """Compare these contenders one after the other, each with the best before it."""
        self.moves.to(State.COMPARING, reason)
        self._to_open = deque(contenders)
        return self._next_challenger()

    def _next_challenger(self) -> Instructions:
        if self._stored is not None and self.challenger == plan_of(self._stored):
            self._judge_stored(self._stored)
        if self._like is not None and self.challenger == plan_of(self._like) != self.best:
            self._queue.drop(self._like)
            self._like = None
        self._duel = None
        if not self._to_open:
            return self._next_variant("compared")
        self._pending = do.Open(self._to_open.popleft())
        return ()

    def _observe_comparison(self, duel: Duel, started_s: float, seconds: float) -> Instructions:
        verdict = duel.observe(started_s=started_s, seconds=seconds)
        if verdict is None:
            return ()
        slower, self._slower = self._slower, None
        if slower is not None and slower in self._to_open:
            self._to_open.remove(slower)
        if verdict.kept == "plan":
            self._confirmation.won(duel.new, duel.base, gain=verdict.gain, step_s=duel.new_s)
            self._best.loses_to(duel.new, duel.new_s)
        elif self.best != duel.base:
            self._lose(duel.new)
            return do.Unsettle(), do.Compared(duel.new, verdict), *self._next_challenger()
        return do.Compared(duel.new, verdict), *self._next_challenger()

    def _lose(self, doubted: ContenderId) -> None:
        """Have the default run, which is not slower than what was kept, and the second best compared with it."""
        second = self._best.second(self.variants, self.refused)
        self._best.become(DEFAULT)
        if self._like is not None and doubted == plan_of(self._like):
            self._queue.drop(self._like)
            self._like = None
        elif second is not DEFAULT:
            self._to_open = deque((second,))

    def _settle(self) -> Instructions:
        self.moves.to(State.SETTLED, f"{self.best} is the fastest")
        self._offer_fused()
        return self._run_alone(self.best, expected_s=None)

    def _offer_fused(self) -> None:
        """Have the fastest variant tried with fused operators, as soon as learning may take the time."""
        variant = None if self._like is not None else self._queue.fused()
        if variant is not None:
            self._variant, self._pending = variant, do.Capture(variant)

    def _run_alone(self, contender: ContenderId, *, expected_s: float | None) -> Instructions:
        self._best.become(contender, expected_s)
        self._drift = Drift(expected_s)
        self._confirmation.settled(contender, self._best.second(self.variants, self.refused))
        return (do.Settle(contender),)

    def _observe_alone(self, seconds: float, *, all_cores: bool) -> Instructions:
        pace = self._drift.observe(seconds, all_cores=all_cores)
        if pace is None:
            return ()
        if pace.first_s is None:
            variant = self.best.variant
            return () if variant is None else (do.Store(variant, pace.step_s),)
        if not pace.slower:
            return self._settle_on_stored() if self.state is State.RESUMED else ()
        reason = f"a step takes {pace.step_s:.3g} s, at first {pace.first_s:.3g} s"
        if self.state is State.RESUMED:
            return self._compare_stored(reason)
        if self._like is not None and self.best == plan_of(self._like):
            return self._search_anew(reason)
        plans = map(plan_of, self.variants)
        return self._compare_again(reason, plans if self.best is DEFAULT else (self.best,))

    def _confirm(self, seconds: float, *, all_cores: bool) -> Instructions:
        """Compare what was kept once more where its steps alone do not confirm its comparison."""
        if self.state is not State.SETTLED:
            return ()
        doubt = self._confirmation.observe(seconds, all_cores=all_cores, eager_s=self.warm_up.eager_s)
        if doubt is None:
            return ()
        further = self._compare_further(doubt.reason)
        self._alone = True
        if doubt.other is DEFAULT:
            self._duel = Duel(self.best, DEFAULT, alone=True)
        else:
            self._pending = do.Open(doubt.other)
        return further

    def _compare_further(self, reason: str) -> Instructions:
        """Compare the best with one more contender."""
        self.moves.to(State.COMPARING, reason)
        self._pending = None
        return (do.Unsettle(further=True),)

    def _settle_on_stored(self) -> Instructions:
        """Settle on the stored plan, which is as fast as it was."""
        assert self.best.variant is not None
        self._queue.known(self.best.variant, self.best_s or 0.0, fuse=self._stored_fuse)
        self.moves.to(State.SETTLED, "the stored plan is as fast as it was")
        self._offer_fused()
        return ()

    def _compare_stored(self, reason: str) -> Instructions:
        """Compare the stored plan with the default: perhaps the machine as a whole is slower than it was."""
        stored = self.best
        assert stored.variant is not None
        self._stored = stored.variant
        self._queue.add(stored.variant, math.inf)
        return self._compare_again(reason, (stored,))

    def _judge_stored(self, stored: Variant) -> None:
        """After the comparison: go on with the stored plan, or have all plans made anew."""
        if self.best == plan_of(stored):
            self._queue.known(stored, self.best_s or 0.0, fuse=self._stored_fuse)
        else:
            self._queue.drop(stored)
        self._stored = None

    def _compare_again(self, reason: str, contenders: Iterable[ContenderId]) -> Instructions:
        self._duel = self._pending = None
        self._best.become(DEFAULT)
        return do.Unsettle(), *self._compare(reason, tuple(contenders))

    def _search_anew(self, reason: str) -> Instructions:
        for variant in (self._like, self._stored):
            if variant is not None:
                self._queue.drop(variant)
        self._like = self._stored = None
        self._duel = self._pending = None
        self._to_open.clear()
        self._best.become(DEFAULT)
        return do.Unsettle(forget=True), *self._next_variant(reason)

    def _refuse_variant(self, variant: Variant, difference: str) -> Instructions:
        self.refused[plan_of(variant)] = difference
        return do.Refuse(plan_of(variant), difference), *self._next_variant(difference)

    def _refuse(self, contender: ContenderId, difference: str) -> Instructions:
        if contender is DEFAULT:
            raise self.moves.illegal(f"the default differs from itself: {difference}")
        refuse = do.Refuse(contender, difference)
        others = {plan_of(variant) for variant in (self._like, self._stored) if variant is not None}
        if self.state is State.RESUMED or contender in others:  # a plan that is made now is another
            return refuse, *self._search_anew(difference)
        self.refused[contender] = difference
        if contender.variant is not None:
            self._queue.drop(contender.variant)
        if contender == self.challenger:
            return refuse, *self._next_challenger()
        if self._search is not None or self.state is State.WAITING:
            self._best.become(DEFAULT)
            return (refuse,)
        return refuse, *self._compare_again(difference, map(plan_of, self.variants))
