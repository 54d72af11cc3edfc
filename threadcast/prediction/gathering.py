"""Forecasts for threads that ask at the same time, in one call of the model.

A call has a fixed cost, during which the interpreter lock goes from thread to thread a dozen times. A thread that comes
alone computes at once; what others ask for meanwhile is computed together by the first of them whose turn it is. So
nobody waits for more to arrive. Servers of models call this dynamic batching.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.curve_table import ARRAYS
from threadcast.models.base import PerformanceModel

WAIT_S = 0.05
"""Longest wait for others' forecasts, in seconds; they take a few milliseconds. Then a thread computes by itself."""


@dataclass(slots=True, eq=False)
class _Asked:
    """What one thread asks for, and its answer once another thread has computed it."""

    model: PerformanceModel
    ops: Sequence[Op]
    cases: Sequence[Case]
    machine: Machine
    table: CurveTable | None = None
    left: bool = False
    """Whether its thread waits no longer."""

    def goes_with(self, other: _Asked) -> bool:
        return self.model is other.model and self.machine is other.machine and self.cases is other.cases


class Gathering:
    """Calls models for many threads. Forecasts are those that each thread would compute alone, to the last bit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Asked] = deque()

    def predict_many(
        self, model: PerformanceModel, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]],
        cases: Sequence[Case], machine: Machine,
    ) -> CurveTable:  # fmt: skip
        """As the model's own; together with what others ask for where that changes no forecast
        (`PerformanceModel.most_together`)."""
        most = model.most_together(machine)
        if len(ops) >= most or any(observed):
            return model.predict_many(ops, observed, cases, machine=machine)
        own = _Asked(model, ops, cases, machine)
        self._waiting.append(own)
        if not self._lock.acquire(timeout=WAIT_S):
            own.left = True
            with suppress(ValueError):  # another thread computes it just now, in vain
                self._waiting.remove(own)
            return _alone(own)
        try:
            return own.table or self._computed(own, most)
        finally:
            self._lock.release()

    def _computed(self, own: _Asked, most: int) -> CurveTable:
        """The table of `own`; those of others that wait for the same model are computed with it.

        Where that fails each computes by itself, so that an error is raised in the thread that caused it.
        """
        together = self._taken(own, most)
        if len(together) > 1:
            with suppress(Exception):  # whose request it is raises it again
                _share(together)
        return own.table or _alone(own)

    def _taken(self, own: _Asked, most: int) -> list[_Asked]:
        """`own` and what goes with it, at most so many ops, taken from the queue; the rest waits for its own turn."""
        together, count = [own], len(own.ops)
        for _ in range(len(self._waiting)):
            try:
                asked = self._waiting.popleft()
            except IndexError:  # its thread waits no longer and has taken it back
                break
            if asked is own or asked.left:
                continue
            if asked.goes_with(own) and count + len(asked.ops) <= most:
                together.append(asked)
                count += len(asked.ops)
            else:
                self._waiting.append(asked)
        return together


def _share(together: Sequence[_Asked]) -> None:
    """Compute the tables of all, which are of one model and machine, in one call."""
    first, ops = together[0], [op for asked in together for op in asked.ops]
    table = first.model.predict_many(ops, [()] * len(ops), first.cases, machine=first.machine)
    start = 0
    for asked in together:
        rows = slice(start, start := start + len(asked.ops))
        asked.table = replace(table, **{name: getattr(table, name)[rows] for name in ARRAYS})


def _alone(asked: _Asked) -> CurveTable:
    return asked.model.predict_many(asked.ops, [()] * len(asked.ops), asked.cases, machine=asked.machine)
