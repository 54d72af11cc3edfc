"""Finds the kind of a call among those that are known: by its arguments, numbers that it reads, and sizes that vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.size_families import SizeFamilies, SizeFamily
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.tuner.tuning import Tuning

MOST = 3
"""Most graphs for calls that differ only in numbers which they read out of tensors, and which graphs have built in."""
OTHER_NUMBERS = (
    "numbers that it reads out of tensors (.item(), if tensor, the size of x[mask]) change from call to call"
)


class KnownCall(NamedTuple):
    """What is known of a call before it runs."""

    kind: CallKind
    """Its kind, by which calls have graphs."""
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
        self._numbers = False
        """Whether a graph has ever read a number."""

    def find(self, kind: CallKind, leaves: Sequence[Any]) -> KnownCall | None:
        """Return what is known of a call with these leaves of its arguments, which comes now.

        None where there are graphs enough for other numbers than the call's (`OTHER_NUMBERS`): PyTorch runs it.
        """
        new: CallKind | None = None
        for number in range(MOST if self._numbers else 1):
            numbered = kind._replace(arguments=("other numbers", number, kind.arguments)) if number else kind
            runner = self._table.find(numbered)
            if runner is None:
                new = new or numbered
            elif _reads_its_numbers(runner, leaves):
                return KnownCall(numbered, runner, None)
        family = self._families.of(kind, leaves) if new is kind else None
        if family is not None:
            in_family = family.kind_of(leaves)
            return KnownCall(in_family, self._table.find(in_family), family)
        return None if new is None else KnownCall(new, None, None)

    def add(self, call: KnownCall, runner: Tuning | Fallback) -> None:
        """From now on this runs calls of the kind of `call`, which comes now."""
        self._table.add(call.kind, runner)
        self._numbers |= isinstance(runner, Tuning) and runner.captured.reads is not None

    def close(self) -> None:
        """Close all that runs calls, and forget all kinds."""
        self._table.close()
        self._families.clear()


def _reads_its_numbers(runner: Tuning | Fallback, leaves: Sequence[Any]) -> bool:
    """Whether a graph has built in the numbers that a call with these leaves reads out of tensors."""
    reads = runner.captured.reads if isinstance(runner, Tuning) else None
    return reads is None or reads.hold([leaf for leaf in leaves if isinstance(leaf, Tensor)])
