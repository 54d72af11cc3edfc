"""Measures the rounds of a campaign: each op in the time that is its share, from a quiet moment on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from threadcast.collector import budget
from threadcast.collector.busy import LoadWatch
from threadcast.collector.campaign_report import CampaignProgress
from threadcast.collector.rounds import RegretRounds
from threadcast.collector.timing import Goal
from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.measurement import OTHERS_SHARE
from threadcast.core.measurement_time import REPLACES

if TYPE_CHECKING:
    from threadcast.store.machine_changes import MachineChanges


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


@dataclass(slots=True)
class CampaignState:
    """A running campaign. `left`: how many cases are probably still to be measured, by key of each unfinished op."""

    ops: Mapping[str, Op]
    runs_a_step: Mapping[str, int]
    observed: dict[str, list[Measurement]]
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    measured: int = 0
    reused: int = 0
    budget_left_s: float = 0.0
    rounds: RegretRounds | None = None
    drift: float | None = None
    replaces_before: str | None = None

    @property
    def done(self) -> int:
        """Cases that were measured or reused, and ops that failed."""
        return self.measured + self.reused + len(self.failed)


class RoundMeasuring:
    """Measures the rounds of one campaign and stores each measurement at once; what it finds is in the state.

    Before the first measurement `watch` waits for a quiet moment; each measurement says what it tells of the load.
    Time that an op does not use goes to later ones. An op that fails is noted, and the others go on. `on_progress` is
    called after each op.
    """

    def __init__(
        self, measurer: Measurer, store: MeasurementStore, goal: Goal, *, watch: LoadWatch | None,
        on_progress: Callable[[CampaignProgress], None], say: Callable[[str], object], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._measurer, self._store, self._goal = measurer, store, goal
        self._watch, self._on_progress, self._say, self._clock = watch, on_progress, say, clock
        self._waited = False

    def measure(self, state: CampaignState, work: Mapping[Case, Sequence[Op]]) -> None:
        """Measure each op in the case under which `work` has it."""
        if self._watch and not self._waited:
            self._waited = True
            self._watch.wait(self._say)
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
                    state.budget_left_s -= self._clock() - began_s
                    shares_left -= share
                    self._tell(state)

    def _measure_one(
        self, state: CampaignState, op: Op, case: Case, measure: Callable[[Op, Goal], Measurement], goal: Goal
    ) -> None:
        try:
            found = measure(op, goal)
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; one op must not end the campaign
            state.failed[op.key] = f"at {case}: {type(error).__name__}: {error}"
            state.left[op.key] = 0
            return
        if self._watch and (load := self._watch.recent()):
            found = replace(found, conditions={**found.conditions, OTHERS_SHARE: round(load.share, 3)})
        if state.replaces_before is not None:
            found = replace(found, conditions={**found.conditions, REPLACES: state.replaces_before})
        self._store.add([found])
        state.observed[op.key].append(found)
        state.measured += 1
        state.left[op.key] -= 1

    def _tell(self, state: CampaignState) -> None:
        expected = state.rounds.expected.larger if state.rounds else None
        self._on_progress(CampaignProgress(state.done, state.done + sum(state.left.values()), state.reused, expected))
