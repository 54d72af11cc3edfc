"""The choice of the cases in which an op is measured: the interface to models, and fixed choices without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.errors import InvalidInput


class Proposer(Protocol):
    """Chooses the next case of an op from its measurements so far; every performance model is one."""

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The case to measure next, never one that `observed` has; None when enough is known."""


@runtime_checkable
class FixedProposer(Proposer, Protocol):
    """A proposer whose choice does not depend on measurements, so that a whole campaign is known beforehand."""

    def cases(self, machine: Machine) -> tuple[Case, ...]:
        """All cases in which each op is measured."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The case that a forecast chooses for an op now, and the case to measure next, None where that changes nothing.

    `seconds` are those of `case`, forecast or measured. `expected_regret`: how much longer than the best case it is
    expected to take, as a share of the best case's time. `rivals`: other cases that are forecast to be about as fast.
    """

    case: Case
    seconds: float
    expected_regret: float
    next_case: Case | None
    rivals: tuple[Case, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedOp:
    """An op whose forecast was checked: what was measured `before`, and what was `found` at other cases."""

    op: Op
    before: tuple[Measurement, ...]
    found: tuple[Measurement, ...]


@runtime_checkable
class LearningProposer(Proposer, Protocol):
    """A proposer that knows what its choices may cost, and learns from a campaign's measurements of all ops."""

    def choices(self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine) -> list[Choice]:
        """The choice for each op; `next_case` is never one that the op's `observed` has."""

    def learn(self, measurements: Sequence[Measurement], *, tune: bool) -> None:
        """Take over all of the campaign's measurements so far; learn from them at length only with `tune`."""


@runtime_checkable
class CheckedProposer(LearningProposer, Protocol):
    """A proposer that learns from checks how certain its choices are."""

    def check(self, checked: Sequence[CheckedOp], machine: Machine) -> None:
        """Take over all checks so far: if forecasts were further off than they said, choices are expected to cost as
        much more from now on."""


class EveryCase:
    """Every legal case of the machine."""

    def cases(self, machine: Machine) -> tuple[Case, ...]:
        """The machine's cases."""
        return machine.cases()

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The first case that is not in `observed`; None when all are."""
        return _first_missing(self.cases(machine), observed)


class EvenlySpread:
    """`count` cases, evenly spread over the machine's cases from the first to the last.

    With a count of 1 only the last.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise InvalidInput(f"count={count}: at least 1 case must be measured")
        self.count = count

    def cases(self, machine: Machine) -> tuple[Case, ...]:
        """`count` of the machine's cases, all of them where there are fewer."""
        every = machine.cases()
        last = len(every) - 1
        if self.count == 1:
            return every[last:]
        steps = min(self.count, len(every)) - 1
        return tuple(every[round(i * last / steps)] for i in range(steps + 1)) if steps else every

    def propose(self, op: Op, observed: Sequence[Measurement], machine: Machine) -> Case | None:
        """The first of these cases that is not in `observed`; None when all are."""
        return _first_missing(self.cases(machine), observed)


def _first_missing(cases: Sequence[Case], observed: Sequence[Measurement]) -> Case | None:
    measured = {measurement.case for measurement in observed}
    return next((case for case in cases if case not in measured), None)
