"""Which machine of a fleet measures which ops: a decision without clocks, networks or processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from threadcast.core import Op

PART = 8
"""Distinct ops in one part: about ten seconds of measuring, which is what the loss of a machine costs at most."""

ATTEMPTS = 3
"""Machines that may be lost over one part before it is given up: an op may end the process that runs it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Distinct ops that one machine measures at a time, and how often each runs in the steps of all networks."""

    number: int
    kind: str
    ops: tuple[Op, ...]
    runs: tuple[int, ...]


@dataclass(slots=True)
class _Kind:
    """The parts of the machines with one fingerprint."""

    waiting: deque[Part]
    lost: dict[int, int] = field(default_factory=dict)
    done: int = 0


class Parts:
    """Divides the ops of a campaign among machines; those of one kind, that is one fingerprint, share them.

    Each kind of machine measures all ops once. What a lost machine had not ended waits for the next one of its kind.
    `given_up` are the parts over which `ATTEMPTS` machines were lost.
    """

    def __init__(self, ops: Mapping[Op, int], *, size: int = PART) -> None:
        self._ops, self._size = list(ops.items()), size
        self._kinds: dict[str, _Kind] = {}
        self._machines: dict[str, str] = {}
        self._running: dict[str, Part] = {}
        self.given_up: list[Part] = []

    @property
    def kinds(self) -> list[str]:
        """The fingerprints of all machines that ever came."""
        return list(self._kinds)

    @property
    def running(self) -> Mapping[str, Part]:
        """What each busy machine measures, by the machine's name."""
        return self._running

    def come(self, machine: str, kind: str) -> None:
        """A machine with this fingerprint has come, or come back, under a name of its own."""
        self._machines[machine] = kind
        if kind not in self._kinds:
            pieces = [self._ops[i : i + self._size] for i in range(0, len(self._ops), self._size)]
            parts = (
                Part(number, kind, tuple(op for op, _ in piece), tuple(runs for _, runs in piece))
                for number, piece in enumerate(pieces)
            )
            self._kinds[kind] = _Kind(deque(parts))

    def gone(self, machine: str, *, by_part: bool = True) -> Part | None:
        """A machine is lost; returns the part that it had not ended, which waits again, if not given up.

        With `by_part` the part may be the reason, so it counts as a machine that was lost over the part.
        """
        self._machines.pop(machine, None)
        part = self._running.pop(machine, None)
        if part is None:
            return None
        kind = self._kinds[part.kind]
        kind.lost[part.number] = kind.lost.get(part.number, 0) + by_part
        if kind.lost[part.number] < ATTEMPTS:
            kind.waiting.append(part)  # last: if its ops end machines, all others are measured first
        else:
            self.given_up.append(part)
        return part

    def ended(self, machine: str) -> None:
        """A machine has measured its part."""
        self._kinds[self._running.pop(machine).kind].done += 1

    def next(self) -> list[tuple[str, Part]]:
        """Give each idle machine a part, if one waits; returns who begins with what."""
        begun = []
        for machine, kind in self._machines.items():
            waiting = self._kinds[kind].waiting
            if machine not in self._running and waiting:
                self._running[machine] = waiting.popleft()
                begun.append((machine, self._running[machine]))
        return begun

    def count(self) -> tuple[int, int]:
        """How many parts are done, and how many there are, over all kinds."""
        pieces = -(-len(self._ops) // self._size)
        return sum(kind.done for kind in self._kinds.values()), pieces * len(self._kinds)

    def waiting(self) -> list[Part]:
        """The parts that no machine measures now."""
        return [part for kind in self._kinds.values() for part in kind.waiting]

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing waits; False before the first machine has come."""
        return bool(self._kinds) and not self._running and not self.waiting()


def together(graphs: Iterable[Sequence[Op]]) -> dict[Op, int]:
    """The distinct ops of several graphs and how often each occurs in all of them, in the order of first appearance."""
    found: dict[str, tuple[Op, int]] = {}
    for ops in graphs:
        for op in ops:
            found[op.key] = (op, found.get(op.key, (op, 0))[1] + 1)
    return dict(found.values())
