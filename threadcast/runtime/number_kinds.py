"""Calls that differ in the numbers which they read out of tensors are of several kinds: graphs have these built in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from threadcast.capture.number_reads import NumberReads
from threadcast.runtime.call_kinds import CallKind

MOST = 3
"""Most graphs for calls that differ only in such numbers. Calls with other numbers are then left to PyTorch."""
OTHER_NUMBERS = (
    "numbers that it reads out of tensors (.item(), if tensor, the size of x[mask]) change from call to call"
)


class NumberKinds:
    """Finds the kind of a call by the numbers that captured graphs of such calls have read."""

    def __init__(self) -> None:
        self._reads: dict[CallKind, list[NumberReads]] = {}

    def kind_of(self, kind: CallKind, leaves: Sequence[Any]) -> CallKind | None:
        """Return the kind of a call that is of `kind` but for numbers in its tensors; `kind` where no graph reads any.

        None where no graph was captured for the call's numbers, and there are enough for other numbers.
        """
        known = self._reads.get(kind)
        if known is None:
            return kind
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        number = next((i for i, reads in enumerate(known) if reads.hold(tensors)), len(known))
        return _numbered(kind, number) if number < MOST else None

    def captured(self, kind: CallKind, numbered: CallKind, reads: NumberReads | None) -> None:
        """Remember the numbers of the graph for calls of the kind `numbered`, which `kind_of` returned for `kind`."""
        if reads is None:
            return
        known = self._reads.setdefault(kind, [])
        for i in range(len(known)):
            if _numbered(kind, i) == numbered:
                known[i] = reads  # the graph was captured once more
                return
        known.append(reads)

    def clear(self) -> None:
        """Forget all graphs."""
        self._reads.clear()


def _numbered(kind: CallKind, number: int) -> CallKind:
    return kind._replace(arguments=("other numbers", number, kind.arguments)) if number else kind
