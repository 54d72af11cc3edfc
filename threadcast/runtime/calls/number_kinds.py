"""Calls that differ in the numbers which they read out of tensors are of several kinds: graphs have these built in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from threadcast.capture.graph.numbers import NumberReads
from threadcast.runtime.calls.kinds import CallKind

MOST = 3
"""Most graphs for calls that differ only in such numbers. Calls with other numbers are then left to PyTorch."""
OTHER_NUMBERS = (
    "numbers that it reads out of tensors (.item(), if tensor, the size of x[mask]) change from call to call"
)
_OTHERS = "other numbers"


class NumberKinds:
    """Finds the kind of a call by the numbers that captured graphs of such calls have read."""

    def __init__(self) -> None:
        self._reads: dict[CallKind, list[NumberReads | None]] = {}
        """By the kind of calls but for such numbers, those of its graphs; None where a graph has gone."""

    def kind_of(self, kind: CallKind, leaves: Sequence[Any]) -> CallKind | None:
        """Return the kind of a call that is of `kind` but for numbers in its tensors; `kind` where no graph reads any.

        None where no graph was captured for the call's numbers, and there are enough for other numbers.
        """
        known = self._reads.get(kind)
        if known is None:
            return kind
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        number = next((i for i, reads in enumerate(known) if reads is not None and reads.hold(tensors)), None)
        if number is None:
            number = known.index(None) if None in known else len(known)
        return _numbered(kind, number) if number < MOST else None

    def captured(self, kind: CallKind, numbered: CallKind, reads: NumberReads | None) -> None:
        """Remember the numbers of the graph for calls of the kind `numbered`, which `kind_of` returned for `kind`."""
        if reads is None:
            return
        known, number = self._reads.setdefault(kind, []), _number_of(numbered)
        known += [None] * (number + 1 - len(known))
        known[number] = reads

    def dropped(self, numbered: CallKind) -> None:
        """Forget the graph for calls of the kind `numbered`, which has gone, and the tensors that it read."""
        number = _number_of(numbered)
        kind = numbered._replace(arguments=numbered.arguments[2]) if number else numbered  # type: ignore[index]
        known = self._reads.get(kind, [])
        if number < len(known):
            known[number] = None
            if not any(known):
                del self._reads[kind]

    def clear(self) -> None:
        """Forget all graphs."""
        self._reads.clear()


def _numbered(kind: CallKind, number: int) -> CallKind:
    return kind._replace(arguments=(_OTHERS, number, kind.arguments)) if number else kind


def _number_of(numbered: CallKind) -> int:
    """The number that `_numbered` has given a kind."""
    arguments = numbered.arguments
    number: int = arguments[1] if isinstance(arguments, tuple) and arguments[0] == _OTHERS else 0
    return number
