"""What runs the calls of each kind: a table bounded in bytes, in which the least recently used kinds make room."""

from __future__ import annotations

from collections.abc import Iterator

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.tuner.tuning import Tuning

MOST_KINDS = 1_000
"""Most kinds of calls (shapes, types, modes) in the table, however small."""


class CallTable:
    """For each kind of calls what runs them, iterated in the order of first use.

    The entries, but the last that was used, take at most `most_bytes` together (`Tuning.size_bytes`).
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._runners: dict[CallKind, Tuning | Fallback] = {}
        self._last: tuple[CallKind, Tuning | Fallback] | None = None
        """The last call's entry: comparing with it is quicker than looking it up."""
        self._used: dict[CallKind, int] = {}
        """The kinds by when they were last begun to be used, as a number that increases."""

    def __iter__(self) -> Iterator[Tuning | Fallback]:
        return iter(list(self._runners.values()))  # other threads read reports meanwhile

    @property
    def items(self) -> list[tuple[CallKind, Tuning | Fallback]]:
        """The kinds in the table, each with what runs it. May be read from any thread."""
        return list(self._runners.items())

    @property
    def kinds(self) -> list[CallKind]:
        """The kinds in the table."""
        return list(self._runners)

    def __len__(self) -> int:
        return len(self._runners)

    @property
    def tunings(self) -> list[Tuning]:
        """The entries that PyTorch's default does not run for good. May be read from any thread."""
        return [runner for runner in list(self) if isinstance(runner, Tuning)]

    def find(self, kind: CallKind) -> Tuning | Fallback | None:
        """Return what runs a call of this kind, which comes now; None for a kind that is not in the table."""
        if self._last is not None and self._last[0] == kind:
            runner = self._last[1]
            self._last = kind, runner  # settings that are the same object compare at once
            return runner
        return self._use(kind) if kind in self._runners else None

    def add(self, kind: CallKind, runner: Tuning | Fallback) -> None:
        """Add a kind, whose call comes now; those that were used least recently make room for it, and are closed."""
        self._runners[kind] = runner
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

    def _use(self, kind: CallKind) -> Tuning | Fallback:
        self._last = kind, self._runners[kind]
        self._used[kind] = max(self._used.values(), default=0) + 1
        return self._last[1]
