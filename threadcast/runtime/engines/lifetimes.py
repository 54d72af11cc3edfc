"""Finds the last op to use each value, so that a step needs no more memory than eager's in any order of the ops."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from threadcast.runtime.engines.replay import Replay


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """After which operators values are freed. Values and operators are given by number.

    `last[op]` are the values that can be freed once `op` has finished, because `op` is always their last user. The
    users of other values finish in varying order, so these are counted: `counted[op]` are such values that `op` uses,
    `users[value]` is the number of operators that use the value. The user that finishes last frees it.
    """

    last: tuple[tuple[int, ...], ...]
    counted: tuple[tuple[int, ...], ...]
    users: dict[int, int]


def lifetimes(touches: Sequence[Collection[int]], returned: Collection[int], replay: Replay) -> Lifetimes:
    """Return after which operators values can be freed when ops run as `replay` says; values in `returned` never are.

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
        if value in returned:
            continue
        final = next((op for op in reversed(ops) if all(replay.surely_before(other, op) for other in ops)), None)
        if final is not None:
            last[final].append(value)
            continue
        counts[value] = len(ops)
        for op in ops:
            counted[op].append(value)
    return Lifetimes(tuple(map(tuple, last)), tuple(map(tuple, counted)), counts)
