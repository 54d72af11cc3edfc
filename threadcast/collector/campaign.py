"""A campaign: measures every op of a network once in each case that a model asks for, and stores the measurements."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from threadcast.collector import budget
from threadcast.collector.busy import LIMIT, Cpu, CpuTimes, Load, LoadWatch, measure_load, read_cpu_times, refuse_busy
from threadcast.collector.campaign_checks import (
    CHECKED_CASES,
    DRIFT,
    MOST_CHECKS,
    CheckedRegret,
    checked_cases,
    drawn,
    drift_factor,
    holding,
    probes,
)
from threadcast.collector.counters.op_counters import OpCounters
from threadcast.collector.proposers import (
    CheckedOp,
    CheckedProposer,
    Choice,
    FixedProposer,
    LearningProposer,
    Proposer,
)
from threadcast.collector.rounds import ExpectedRegret, RegretRounds
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Measurement, Op, OpGraph
from threadcast.core.errors import BusyMachine, MeasurementError
from threadcast.core.measurement_time import REPLACES, not_void

if TYPE_CHECKING:
    from threadcast.core.machine_changes import MachineChanges

MEAN_S = 0.15
"""Default mean seconds for one op in one case: ResNet-18's training step (94 ops) at 2 cases takes half a minute."""


ENOUGH = 0.02
"""Default expected regret at which a campaign ends: as much as medians are known to by default."""


class Measurer(Protocol):
    """Measures ops on one machine; `collector.lone.LoneOps` is the real one."""

    machine: Machine
    conditions: Mapping[str, Any]
    """Conditions that must be equal for two measurements to be comparable."""

    def at(self, case: Case) -> AbstractContextManager[Callable[[Op, Goal], Measurement]]:
        """A context manager that returns a function to measure ops in `case`: `measure(op, goal)`."""


class MeasurementStore(Protocol):
    """Where a campaign finds what was measured before and keeps what it measures; `store.Store` is one."""

    def measurements(self, *, machine: str | None = None, keys: Collection[str] | None = None) -> list[Measurement]:
        """The measurements on the machine with this fingerprint, of the ops with these keys; None: of all."""

    def changes(self, machine: str) -> MachineChanges:
        """What the ops of the machine with this fingerprint tell of its changes."""

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Keep measurements, and return their number."""


@dataclass(frozen=True, slots=True)
class CampaignProgress:
    """How far a campaign is; `op` in `case` was measured last.

    `done` counts measured and reused cases and failed ops; `total` may grow while a model adapts. `reused` counts cases
    that were already in the store. `remaining_s` is an estimate.
    """

    done: int
    total: int
    reused: int
    remaining_s: float
    op: Op
    case: Case
    expected_regret: float | None = None
    """The larger of the step's and the ops' mean, before this round; None without forecasts."""


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """The outcome of a campaign.

    `observed` are all measurements by op key, those of earlier campaigns included. `failed` is by op key why the op
    failed. `measured` and `reused` count cases. `elapsed_s` is the campaign's duration in seconds.
    """

    observed: Mapping[str, tuple[Measurement, ...]]
    failed: Mapping[str, str]
    measured: int
    reused: int
    elapsed_s: float
    load: Load | None
    """How busy other processes kept the CPUs meanwhile; None if nothing was measured or the load could not be read."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """By op key, the case that the forecast chooses at the end; empty where the proposer is no `LearningProposer`."""
    expected: ExpectedRegret | None = None
    """What these choices are expected to cost; None where there are none."""
    checked: CheckedRegret | None = None
    """What choices cost that were checked; None where none was."""
    drift: float | None = None
    """By what factor old measurements were off when some were made again; None where none was. Above `DRIFT` all were
    made again."""


@dataclass(slots=True)
class _State:
    """A running campaign. `left`: how many cases are probably still to be measured, by key of each unfinished op."""

    ops: Mapping[str, Op]
    runs_a_step: Mapping[str, int]
    observed: dict[str, list[Measurement]]
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    measured: int = 0
    reused: int = 0
    spent_s: float = 0.0
    budget_left_s: float = 0.0
    watching: bool = False
    watch: LoadWatch | None = None
    rounds: RegretRounds | None = None
    drift: float | None = None
    replaces_before: str | None = None

    @property
    def done(self) -> int:
        return self.measured + self.reused + len(self.failed)


class Campaign:
    """Measures the distinct ops of a graph in the cases that `proposer` asks for, and stores each measurement at once.

    Measurements in the store of the same machine, op, case and conditions are used and not repeated, so a campaign that
    was killed continues where it was. The work goes in rounds: the proposer is asked for the next case of every op, a
    `LearningProposer` of the ops whose choice may still cost most (`rounds`); ops are grouped by case, and each case's
    team of threads is started once in a round.

    `enough` is the expected regret at which a campaign that follows a `LearningProposer` ends; then the choices for so
    many ops as `check` says are checked by some more measurements each. Where these lie further from their forecasts
    than the forecasts said (`CheckedProposer`), choices are expected to cost more, and the campaign goes on; at the end
    others are checked.
    Measurements of more than `max_age_days` are made again, and those since which the op or the machine has changed
    (`core.holding`). If all are older than an hour, a few are made again first: where times have changed, so are all
    others (`campaign_checks`).
    `mean_s` is the mean seconds for one op in one case; ops that take more of a step get more. `tolerance` and
    `confidence` are those of `timing.Goal`. `busy_limit` is that of `busy.refuse_busy`; with None a busy machine is not
    refused. Stored measurements that lack what `counters` require are made again. `on_progress` is called after each
    measurement. An op that fails is left out of the following rounds.
    """

    def __init__(
        self,
        measurer: Measurer,
        proposer: Proposer,
        store: MeasurementStore,
        *,
        enough: float = ENOUGH,
        check: int = 0,
        max_age_days: float | None = None,
        mean_s: float = MEAN_S,
        tolerance: float = 0.02,
        confidence: float = 0.95,
        busy_limit: float | None = LIMIT,
        counters: OpCounters | None = None,
        on_progress: Callable[[CampaignProgress], None] | None = None,
        measure_load: Callable[[Sequence[Cpu]], Load] = measure_load,
        read_cpu_times: Callable[[Sequence[Cpu]], CpuTimes] = read_cpu_times,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._check, self._max_age_days, self._now = check, max_age_days, now
        self._goal, self._enough = Goal(tolerance, confidence, mean_s), enough
        self._measurer, self._proposer, self._store = measurer, proposer, store
        self._machine = measurer.machine
        self._counters = counters or OpCounters()
        self._busy_limit, self._on_progress = busy_limit, on_progress or (lambda progress: None)
        self._measure_load, self._read_cpu_times, self._clock = measure_load, read_cpu_times, clock

    def run(self, graph: OpGraph) -> CampaignReport:
        """Measure until the proposer asks for nothing more.

        Raises BusyMachine before anything is measured, and MeasurementError where the proposer asks for a case twice.
        After a KeyboardInterrupt or a StoreError, which pass through, all measurements made so far are in the store.
        """
        state = _State(graph.distinct_ops(), Counter(op.key for op in graph.ops), self._known(graph))
        started_s = self._clock()
        probed = self._probe(state)
        state.reused = sum(
            len(self._cases_used([m for m in known if m.case != probed.get(key)]))
            for key, known in state.observed.items()
        )
        if isinstance(self._proposer, LearningProposer):
            state.rounds = RegretRounds(self._proposer, enough=self._enough, clock=self._clock)
        self._measure_all(state)
        checked = self._check_and_go_on(state) if state.measured > len(probed) else None
        observed = {key: tuple(found) for key, found in state.observed.items()}
        load = state.watch.overall() if state.watch else None
        return CampaignReport(
            observed, state.failed, state.measured, state.reused, self._clock() - started_s, load,
            choices=state.rounds.choices if state.rounds else {},
            expected=state.rounds.expected if state.rounds and state.rounds.choices else None,
            checked=checked, drift=state.drift,
        )  # fmt: skip

    def _measure_all(self, state: _State) -> None:
        """Measure round after round until the proposer asks for nothing more."""
        work = self._next_round(state)
        while work:
            self._watch(state)
            self._measure_round(state, work)
            work = self._next_round(state)

    def _watch(self, state: _State) -> None:
        """Before the first measurement, refuse a busy machine and begin to watch its load."""
        if not state.watching:
            state.watching, state.watch = True, self._watch_load()

    def _probe(self, state: _State) -> Mapping[str, Case]:
        """Make a few old measurements again; where their times have changed, forget all others. Returns what was made
        again: for each op key the case. On a machine that others keep busy meanwhile, times tell nothing."""
        old = {m.op.key: m for m in probes(state.observed, now=self._now())}
        if not old:
            return {}
        before = self._now().replace(microsecond=0).isoformat()  # times of measurements have whole seconds
        self._measure_again(state, {key: m.case for key, m in old.items()})
        new = {key: state.observed[key][-1] for key in old if key not in state.failed}
        for key in new:
            state.observed[key] = [m for m in state.observed[key] if m is not old[key]]
        load = state.watch.recent() if state.watch else None
        if load is None or load.share <= LIMIT:
            state.drift = drift_factor([(old[key], m) for key, m in new.items()])
            if state.drift > DRIFT:
                state.observed = {key: [new[key]] if key in new else [] for key in state.ops}
                state.replaces_before = before
        return {key: m.case for key, m in new.items()}

    def _check_and_go_on(self, state: _State) -> CheckedRegret | None:
        """Check the choices for some ops that are not measured wholly; where forecasts prove to be less certain than
        they said, measure on, then check others. Returns the last check."""
        last, checked = None, dict[str, CheckedOp]()
        proposer, rounds = self._proposer, state.rounds
        if not rounds:
            return None
        for number in range(MOST_CHECKS):
            open_ = [
                key
                for key, choice in rounds.choices.items()
                if key not in state.failed and key not in checked and checked_cases(choice, state.observed[key])
            ]
            keys = drawn(open_, self._check, seed=number)
            if not keys:
                break
            found, ops = self._checked(state, rounds, keys)
            last, checked = found or last, checked | ops
            if isinstance(proposer, CheckedProposer):
                proposer.check(list(checked.values()), self._machine)
            rounds.learn_anew()
            before = state.measured
            self._measure_all(state)
            if state.measured == before:
                break
        return last

    def _checked(
        self, state: _State, rounds: RegretRounds, keys: Sequence[str]
    ) -> tuple[CheckedRegret | None, dict[str, CheckedOp]]:
        """Measure the chosen case of these ops, the one that the proposer asks for, and a rival drawn at random: what
        the choices cost by that, and what was found, by op key."""
        before = {key: tuple(state.observed[key]) for key in keys}
        chosen = {key: rounds.choices[key] for key in keys}
        asked = {key: checked_cases(choice, before[key]) for key, choice in chosen.items()}
        for turn in range(CHECKED_CASES):
            cases = {key: of[turn] for key, of in asked.items() if turn < len(of) and key not in state.failed}
            self._measure_again(state, cases)
        going = [key for key in keys if key not in state.failed]
        found = {
            key: CheckedOp(state.ops[key], before[key], tuple(state.observed[key][len(before[key]) :]))
            for key in going
            if len(state.observed[key]) > len(before[key])
        }
        return CheckedRegret.of({key: chosen[key].case for key in going}, state.observed), found

    def _measure_again(self, state: _State, cases: Mapping[str, Case]) -> None:
        """Measure these ops, by key, in one case each."""
        if not cases:
            return
        self._watch(state)
        work: dict[Case, list[Op]] = defaultdict(list)
        for key, case in cases.items():
            work[case].append(state.ops[key])
        state.left = dict.fromkeys(cases, 1)
        self._measure_round(state, dict(sorted(work.items())))

    def _known(self, graph: OpGraph) -> dict[str, list[Measurement]]:
        """The store's measurements of the graph's ops on this machine under the same conditions, by op key."""
        known: dict[str, list[Measurement]] = {key: [] for key in graph.distinct_ops()}
        wanted = self._measurer.conditions
        comparable = [
            found
            for found in self._store.measurements(machine=self._machine.fingerprint, keys=known)
            if all(found.conditions.get(name) == value for name, value in wanted.items())
        ]
        complete = [found for found in not_void(comparable) if not self._counters.lacking(found)]
        changes = self._store.changes(self._machine.fingerprint)
        for found in holding(complete, now=self._now(), max_age_days=self._max_age_days, elsewhere=changes):
            known[found.op.key].append(found)
        return known

    def _watch_load(self) -> LoadWatch | None:
        """Refuse a busy machine, then watch its load; None where the load cannot be read and no limit was set."""
        cores = [core.cpus for core in self._machine.cores]  # the second threads slow down the first
        try:
            if self._busy_limit is not None:
                refuse_busy(self._measure_load(cores), limit=self._busy_limit)
            return LoadWatch(lambda: self._read_cpu_times(cores))
        except BusyMachine:
            raise
        except MeasurementError:
            if self._busy_limit is not None:
                raise
            return None

    def _next_round(self, state: _State) -> dict[Case, list[Op]]:
        """The ops to measure next, by the case that the proposer asks for."""
        asked = self._asked_of_some(state, state.rounds) if state.rounds else self._asked_of_each(state)
        work: dict[Case, list[Op]] = defaultdict(list)
        for key, case in asked.items():
            if any(found.case == case for found in state.observed[key]):
                raise MeasurementError(
                    f"{type(self._proposer).__name__} asked for {case} of {key} again; propose() must return a case "
                    f"that was not observed, or None"
                )
            work[case].append(state.ops[key])
        return dict(sorted(work.items()))

    def _asked_of_some(self, state: _State, rounds: RegretRounds) -> dict[str, Case]:
        going = {key: op for key, op in state.ops.items() if key not in state.failed}
        asked = rounds.next(going, state.runs_a_step, state.observed, self._machine)
        state.left = dict.fromkeys(rounds.wanting, 1)
        return asked

    def _asked_of_each(self, state: _State) -> dict[str, Case]:
        asked, finished = {}, []
        for key, op in state.ops.items():
            known = state.observed[key]
            case = self._proposer.propose(op, known, self._machine) if key not in state.failed else None
            if case is None:
                finished.append(len(known))
            else:
                asked[key] = case
        state.left = {key: self._cases_left(state.observed[key], finished) for key in asked}
        return asked

    def _cases_used(self, known: Sequence[Measurement]) -> set[Case]:
        """The cases that the proposer asks for and that are measured already."""
        measured = {found.case for found in known}
        if not isinstance(self._proposer, FixedProposer):
            return measured
        return measured & set(self._proposer.cases(self._machine))

    def _cases_left(self, known: Sequence[Measurement], finished: Sequence[int]) -> int:
        """Cases still to be measured, the one just asked for included; estimated where a model adapts."""
        if isinstance(self._proposer, FixedProposer):
            return len(self._proposer.cases(self._machine)) - len(self._cases_used(known))
        return max(1, round(fmean(finished)) - len(known)) if finished else 1

    def _measure_round(self, state: _State, work: Mapping[Case, Sequence[Op]]) -> None:
        weights = [
            state.runs_a_step[op.key] * budget.guess_s(op, case, state.observed[op.key])
            for case, ops in work.items()
            for op in ops
        ]
        shares = iter(budget.shares(weights))
        shares_left = 1.0
        state.budget_left_s += self._goal.budget_s * len(weights)
        for case, ops in work.items():
            with self._measurer.at(case) as measure:
                for op in ops:
                    share = next(shares)
                    limit_s = budget.allotment_s(state.budget_left_s, share, shares_left, self._goal.budget_s)
                    began_s = self._clock()
                    self._measure_one(state, op, case, measure, replace(self._goal, budget_s=limit_s))
                    spent_s = self._clock() - began_s
                    state.spent_s, state.budget_left_s = state.spent_s + spent_s, state.budget_left_s - spent_s
                    shares_left -= share
                    self._tell(state, op, case)

    def _measure_one(
        self, state: _State, op: Op, case: Case, measure: Callable[[Op, Goal], Measurement], goal: Goal
    ) -> None:
        try:
            found = measure(op, goal)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; one op must not end the campaign
            state.failed[op.key] = f"at {case}: {type(error).__name__}: {error}"
            state.left[op.key] = 0
            return
        if state.watch and (load := state.watch.recent()):
            found = replace(found, conditions={**found.conditions, "others_share": round(load.share, 3)})
        if state.replaces_before is not None:
            found = replace(found, conditions={**found.conditions, REPLACES: state.replaces_before})
        self._store.add([found])
        state.observed[op.key].append(found)
        state.measured += 1
        state.left[op.key] -= 1

    def _tell(self, state: _State, op: Op, case: Case) -> None:
        left = sum(state.left.values())
        remaining_s = budget.remaining_s(
            state.spent_s, state.measured + len(state.failed), left, mean_s=self._goal.budget_s
        )
        expected = state.rounds.expected.larger if state.rounds else None
        self._on_progress(
            CampaignProgress(state.done, state.done + left, state.reused, remaining_s, op, case, expected)
        )
