"""What runs the calls of each kind: a table bounded in bytes, in which the least recently used kinds make room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.plans.model_cores import ModelCores
from threadcast.runtime.tuner.tuning import Tuning

MOST_KINDS = 1_000
"""Most kinds of calls (shapes, types, modes) in the table, however small."""
MOST_NUMBERS = 3
"""Most graphs for calls that differ only in numbers which they read out of tensors, and which graphs have built in."""
OTHER_NUMBERS = (
    "numbers that it reads out of tensors (.item(), if tensor, the size of x[mask]) change from call to call"
)

Runner = Tuning | Fallback
"""What runs the calls of a kind."""

_NOT_MEASURED = Fallback("it has other cores than it was measured on, and they may go as soon as they came")


class CallTable:
    """For each kind of calls what runs them, iterated in the order of first use.

    The entries, but the last that was used, take at most `most_bytes` together (`Tuning.size_bytes`).
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runners: dict[CallKind, Runner] = {}
        self._last: tuple[CallKind, Runner] | None = None
        """The last call's entry: comparing with it is quicker than looking it up."""
        self._used: dict[CallKind, int] = {}
        """The kinds by when they were last begun to be used, as a number that increases."""
        self._numbers = False
        """Whether a graph has ever read a number."""

    def __iter__(self) -> Iterator[Runner]:
        return iter(list(self._runners.values()))  # other threads read reports meanwhile

    def __len__(self) -> int:
        return len(self._runners)

    @property
    def tunings(self) -> list[Tuning]:
        """The entries that PyTorch's default does not run for good. May be read from any thread."""
        return [runner for runner in list(self) if isinstance(runner, Tuning)]

    def find(self, kind: CallKind) -> Runner | None:
        """Return what runs a call of this kind, which comes now; None for a kind that is not in the table."""
        if self._last is not None and self._last[0] == kind:
            runner = self._last[1]
            self._last = kind, runner  # settings that are the same object compare at once
            return runner
        return self._use(kind) if kind in self._runners else None

    def find_call(self, kind: CallKind, leaves: Sequence[Any]) -> tuple[CallKind, Runner | None] | None:
        """Return the kind of a call with these leaves of its arguments, which comes now, and what runs it, if known.

        Calls with the same arguments have several kinds where graphs read different numbers out of them. None where
        there are graphs enough for other numbers than the call's (`OTHER_NUMBERS`): PyTorch runs it.
        """
        new: CallKind | None = None
        for number in range(MOST_NUMBERS if self._numbers else 1):
            numbered = kind._replace(arguments=("other numbers", number, kind.arguments)) if number else kind
            runner = self.find(numbered)
            if runner is None:
                new = new or numbered
            elif _reads_its_numbers(runner, leaves):
                return numbered, runner
        return None if new is None else (new, None)

    def on_other_cores(self, found: Runner | None, cores: ModelCores) -> Runner | None:
        """Return what runs a call on the `cores` of now, where `found` runs it on those that it was measured on.

        None where all calls are to be measured anew on the cores of now, which have stayed for long enough.
        """
        if isinstance(found, Fallback):
            return found
        follows = found is not None and found.follows
        if follows and not cores.has_more:
            return found
        others_follow = any(tuning.follows for tuning in self.tunings)
        if cores.unchanged and (cores.has_more or not others_follow):
            return None
        return found if follows else _NOT_MEASURED

    def add(self, kind: CallKind, runner: Runner) -> None:
        """Add a kind, whose call comes now; those that were used least recently make room for it, and are closed."""
        self._runners[kind] = runner
        self._numbers |= isinstance(runner, Tuning) and runner.captured.reads is not None
        self._use(kind)
        while len(self._runners) > 1 and (len(self._runners) > MOST_KINDS or self._size_bytes() > self._most_bytes):
            self.drop(min(self._runners, key=self._used.__getitem__))

    def close(self) -> None:
        """Close all entries and empty the table."""
        for tuning in self.tunings:
            tuning.close()
        self._runners.clear()
        self._used.clear()
        self._last = None

    def _size_bytes(self) -> int:
        return sum(tuning.size_bytes for tuning in self.tunings)

    def drop(self, kind: CallKind) -> None:
        """Remove a kind that is in the table, and close its entry."""
        if self._last is not None and self._last[0] == kind:
            self._last = None
        dropped = self._runners.pop(kind)
        del self._used[kind]
        if isinstance(dropped, Tuning):
            dropped.close()

    def _use(self, kind: CallKind) -> Runner:
        self._last = kind, self._runners[kind]
        self._used[kind] = max(self._used.values(), default=0) + 1
        return self._last[1]


def _reads_its_numbers(runner: Runner, leaves: Sequence[Any]) -> bool:
    """Whether a graph has built in the numbers that a call with these leaves reads out of tensors."""
    reads = runner.captured.reads if isinstance(runner, Tuning) else None
    return reads is None or reads.hold([leaf for leaf in leaves if isinstance(leaf, Tensor)])
