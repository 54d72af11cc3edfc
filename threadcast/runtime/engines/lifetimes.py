"""Which op is the last to use each value, so that memory does not grow past eager's, in whatever order ops run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from threadcast.runtime.engines.replay import Replay


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """After which operators values are freed; values and operators are known by their numbers.

    `last[op]` are values that nothing uses once `op` has finished. The users of other values may finish in several
    orders: `counted[op]` are those of them that `op` uses, and `users[value]` is how many operators use each; the one
    that finishes last frees it.
    """

    last: tuple[tuple[int, ...], ...]
    counted: tuple[tuple[int, ...], ...]
    users: dict[int, int]


def lifetimes(touches: Sequence[Collection[int]], kept: Collection[int], replay: Replay) -> Lifetimes:
    """Return after which operators values can be freed under `replay`; those in `kept` are never freed.

    `touches[op]` are the values that the operator reads, writes or creates.
    """
    users: dict[int, list[int]] = {}
    for op, values in enumerate(touches):
        for value in values:
            users.setdefault(value, []).append(op)
    last: list[list[int]] = [[] for _ in touches]
    counted: list[list[int]] = [[] for _ in touches]
    counts: dict[int, int] = {}
    for value, ops in users.items():
        if value in kept:
            continue
        final = next((op for op in reversed(ops) if all(replay.surely_before(other, op) for other in ops)), None)
        if final is not None:
            last[final].append(value)
            continue
        counts[value] = len(ops)
        for op in ops:
            counted[op].append(value)
    return Lifetimes(tuple(map(tuple, last)), tuple(map(tuple, counted)), counts)
