"""What runs the calls of each kind: a bounded table in which the least recently used kind makes room for another."""

from __future__ import annotations

from collections.abc import Iterator

from threadcast.runtime.call_kinds import CallKind
from threadcast.runtime.fallback import Fallback
from threadcast.runtime.tuning.tuning import Tuning

MAX_SIGNATURES = 8
"""Most kinds of arguments (shapes, types, modes) that have a plan at a time; calls of further kinds run in PyTorch as
before, until `CALLS_IN_A_ROW` of one kind have come."""
CALLS_IN_A_ROW = 100
"""Calls of one further kind in a row, after which it is planned in place of the kind that was used least recently. A
number that changes in every call, as one that is annealed, never gets there; once it stays the same it does."""


class CallTable:
    """For at most `MAX_SIGNATURES` kinds of calls what runs them, iterated in the order of first use."""

    def __init__(self) -> None:
        self._runners: dict[CallKind, Tuning | Fallback] = {}
        self._last: tuple[CallKind, Tuning | Fallback] | None = None
        """The last call's entry: comparing with it is quicker than looking it up."""
        self._used: dict[CallKind, int] = {}
        """The kinds by when they were last begun to be used, as a number that increases."""
        self._further: tuple[CallKind | None, int] = (None, 0)
        """The kind of the last calls where there is no room for it, and how many calls of it came in a row."""

    def __iter__(self) -> Iterator[Tuning | Fallback]:
        return iter(list(self._runners.values()))

    @property
    def kinds(self) -> list[CallKind]:
        """The kinds in the table."""
        return list(self._runners)

    @property
    def tunings(self) -> list[Tuning]:
        """The entries that PyTorch's default does not run for good. May be read from any thread."""
        return [runner for runner in list(self) if isinstance(runner, Tuning)]

    def find(self, kind: CallKind) -> Tuning | Fallback | None:
        """Return what runs a call of this kind, which comes now; None for a kind that is not in the table."""
        if self._last is not None and self._last[0] == kind:
            runner = self._last[1]
            self._last = kind, runner  # settings that are the same object compare at once
        elif kind in self._runners:
            runner = self._use(kind)
        else:
            return None
        self._further = None, 0
        return runner

    def add(self, kind: CallKind, runner: Tuning | Fallback) -> None:
        """Add a kind, whose call comes now. `make_room` must have returned true for it."""
        self._runners[kind] = runner
        self._use(kind)
        self._further = None, 0

    def make_room(self, kind: CallKind) -> bool:
        """Return whether there is room for `kind`, a call of which comes now and which is not in the table.

        It closes and drops the least recently used kind if there is no other room and `kind` has come often enough.
        """
        if len(self._runners) < MAX_SIGNATURES:
            return True
        further, calls = self._further
        self._further = kind, calls + 1 if further == kind else 1
        if self._further[1] < CALLS_IN_A_ROW:
            return False
        oldest = min(self._runners, key=self._used.__getitem__)
        dropped = self._runners.pop(oldest)
        del self._used[oldest]
        if isinstance(dropped, Tuning):
            dropped.close()
        self._last = None
        return True

    def close(self) -> None:
        """Close all entries and empty the table."""
        for tuning in self.tunings:
            tuning.close()
        self._runners.clear()
        self._used.clear()
        self._last = None

    def _use(self, kind: CallKind) -> Tuning | Fallback:
        self._last = kind, self._runners[kind]
        self._used[kind] = max(self._used.values(), default=0) + 1
        return self._last[1]
