"""A campaign: measures every op of a network once in each case that a model asks for, and stores the measurements."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean

from threadcast.collector.busy import LoadWatch
from threadcast.collector.campaign_checks import (
    CHECKED_CASES,
    DRIFT,
    MOST_CHECKS,
    CheckedRegret,
    checked_cases,
    disturbed_cases,
    drawn,
    drift_factor,
    holding,
    probes,
)
from threadcast.collector.campaign_measuring import CampaignState, MeasurementStore, Measurer, RoundMeasuring
from threadcast.collector.campaign_report import CampaignProgress, CampaignReport
from threadcast.collector.counters.op_counters import OpCounters
from threadcast.collector.proposers import (
    CheckedOp,
    CheckedProposer,
    FixedProposer,
    LearningProposer,
    Proposer,
)
from threadcast.collector.rounds import RegretRounds
from threadcast.collector.timing import Goal
from threadcast.core import Case, Measurement, Op, OpGraph
from threadcast.core.errors import MeasurementError
from threadcast.core.measurement_time import not_void

MEAN_S = 0.15
"""Default mean seconds for one op in one case: ResNet-18's training step (94 ops) at 2 cases takes half a minute."""


IN_VAIN = 5
"""Measurements in a row that were made again and disturbed again, after which no more are. A convention."""

ENOUGH = 0.02
"""Default expected regret at which a campaign ends: as much as medians are known to by default."""


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
    (`store.holding`). If nearly all are older than an hour, a few are made again first: where times have changed, so
    are all others (`campaign_checks`).
    `mean_s` is the mean seconds for one op in one case; ops that take more of a step get more. `tolerance` is
    that of `timing.Goal`. Stored measurements that lack what `counters` require are made again.
    `on_progress` is called after each measurement. An op that fails is left out of the following rounds.

    `watch` waits for a quiet moment before the first measurement (`say` gets a line about that), and tells which
    measurements others disturbed. These are made again at the end, the ones with most of a step's time first, until
    `IN_VAIN` in a row were disturbed once more. Without `watch` none is known to be disturbed.
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
        watch: LoadWatch | None = None,
        say: Callable[[str], object] = lambda text: None,
        counters: OpCounters | None = None,
        on_progress: Callable[[CampaignProgress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._check, self._max_age_days, self._now = check, max_age_days, now
        self._enough, self._clock = enough, clock
        self._measurer, self._proposer, self._store = measurer, proposer, store
        self._machine = measurer.machine
        self._counters = counters or OpCounters()
        self._measuring = RoundMeasuring(
            measurer, store, Goal(tolerance, mean_s), watch=watch,
            on_progress=on_progress or (lambda progress: None), say=say, clock=clock,
        )  # fmt: skip
        self._watch = watch

    def run(self, graph: OpGraph) -> CampaignReport:
        """Measure until the proposer asks for nothing more.

        Raises MeasurementError where the proposer asks for a case twice. After a KeyboardInterrupt or a
        StoreError, which pass through, all measurements made so far are in the store.
        """
        state = CampaignState(graph.distinct_ops(), Counter(op.key for op in graph.ops), self._known(graph))
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
        repeated = self._repeat_disturbed(state)
        observed = {key: tuple(found) for key, found in state.observed.items()}
        load = self._watch.overall() if self._watch and state.measured else None
        return CampaignReport(
            observed, state.failed, state.measured - repeated, state.reused, self._clock() - started_s, load,
            choices=state.rounds.choices if state.rounds else {},
            expected=state.rounds.expected if state.rounds and state.rounds.choices else None,
            checked=checked, drift=state.drift, repeated=repeated, disturbed=len(disturbed_cases(state.observed)),
        )  # fmt: skip

    def _measure_all(self, state: CampaignState) -> None:
        """Measure round after round until the proposer asks for nothing more."""
        work = self._next_round(state)
        while work:
            self._measuring.measure(state, work)
            work = self._next_round(state)

    def _probe(self, state: CampaignState) -> Mapping[str, Case]:
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
        load = self._watch.recent() if self._watch else None
        if load is None or not load.disturbs:
            state.drift = drift_factor([(old[key], m) for key, m in new.items()])
            if state.drift > DRIFT:
                state.observed = {key: [new[key]] if key in new else [] for key in state.ops}
                state.replaces_before = before
        return {key: m.case for key, m in new.items()}

    def _repeat_disturbed(self, state: CampaignState) -> int:
        """Make measurements again that others disturbed, and return how many; see the class."""
        disturbed = disturbed_cases(state.observed)
        again = sorted(disturbed, key=lambda at: -state.runs_a_step[at[0]] * disturbed[at])
        repeated, in_vain = 0, 0
        for key, case in again:
            if in_vain == IN_VAIN:
                break
            if key not in state.failed:
                self._measure_again(state, {key: case})
                in_vain = in_vain + 1 if (key, case) in disturbed_cases({key: state.observed[key]}) else 0
                repeated += 1
        return repeated

    def _check_and_go_on(self, state: CampaignState) -> CheckedRegret | None:
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
        self, state: CampaignState, rounds: RegretRounds, keys: Sequence[str]
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

    def _measure_again(self, state: CampaignState, cases: Mapping[str, Case]) -> None:
        """Measure these ops, by key, in one case each."""
        if not cases:
            return
        work: dict[Case, list[Op]] = defaultdict(list)
        for key, case in cases.items():
            work[case].append(state.ops[key])
        state.left = dict.fromkeys(cases, 1)
        self._measuring.measure(state, dict(sorted(work.items())))

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

    def _next_round(self, state: CampaignState) -> dict[Case, list[Op]]:
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

    def _asked_of_some(self, state: CampaignState, rounds: RegretRounds) -> dict[str, Case]:
        going = {key: op for key, op in state.ops.items() if key not in state.failed}
        asked = rounds.next(going, state.runs_a_step, state.observed, self._machine)
        state.left = dict.fromkeys(rounds.wanting, 1)
        return asked

    def _asked_of_each(self, state: CampaignState) -> dict[str, Case]:
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
