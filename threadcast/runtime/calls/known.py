"""Finds the kind of a call among those that are known: by its arguments, numbers that it reads, and sizes that vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.number_kinds import NumberKinds
from threadcast.runtime.calls.size_families import SizeFamilies, SizeFamily
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.tuner.tuning import Tuning


class KnownCall(NamedTuple):
    """What is known of a call before it runs."""

    kind: CallKind
    """Its kind, by which calls have graphs."""
    but_for_numbers: CallKind
    """The kind of its arguments alone, whatever numbers a graph reads out of them."""
    runner: Tuning | Fallback | None
    """What runs calls of its kind; None where that is still to be found out."""
    family: SizeFamily | None
    """The calls with which it shares a graph, as they differ only in sizes; None where its kind has one of its own."""

    @property
    def shares_graph(self) -> bool:
        """Whether its family has a graph already, which is right for its sizes."""
        return self.family is not None and self.family.is_captured

    @property
    def settled(self) -> bool:
        """Whether the fastest way to run calls of its kind is known."""
        return isinstance(self.runner, Tuning) and self.runner.settled


class KnownCalls:
    """Finds what `table` has for a call, and adds what runs kinds of calls that are new.

    Calls with the same arguments have several kinds where graphs read different numbers out of them, and calls with
    other arguments have one kind where these differ only in sizes.
    """

    def __init__(self, table: CallTable) -> None:
        self._table = table
        self._families = SizeFamilies()
        self._numbers = NumberKinds()

    def find(self, kind: CallKind, leaves: Sequence[Any]) -> KnownCall | None:
        """Return what is known of a call with these leaves of its arguments, which comes now.

        None where there are graphs enough for other numbers than the call's (`OTHER_NUMBERS`).
        """
        numbered = self._numbers.kind_of(kind, leaves)
        if numbered is None:
            return None
        runner = self._table.find(numbered)
        family = self._families.of(kind, leaves) if runner is None and numbered is kind else None
        if family is None:
            return KnownCall(numbered, kind, runner, None)
        in_family = family.kind_of(leaves)
        return KnownCall(in_family, kind, self._table.find(in_family), family)

    def add(self, call: KnownCall, runner: Tuning | Fallback) -> None:
        """From now on this runs calls of the kind of `call`, which comes now."""
        for left in self._table.add(call.kind, runner):
            self._numbers.dropped(left)
        if isinstance(runner, Tuning):
            self._numbers.captured(call.but_for_numbers, call.kind, runner.captured.reads)

    def close(self) -> None:
        """Close all that runs calls, and forget all kinds."""
        self._table.close()
        self._families.clear()
        self._numbers.clear()
