"""Finds the last op to use each value, so that a step needs no more memory than eager's in any order of the ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from threadcast.runtime.engine.replay import Replay


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
    final = _final_users(users, replay)
    last: list[list[int]] = [[] for _ in touches]
    counted: list[list[int]] = [[] for _ in touches]
    counts: dict[int, int] = {}
    for value, ops in users.items():
        if value in returned:
            continue
        if value in final:
            last[final[value]].append(value)
            continue
        counts[value] = len(ops)
        for op in ops:
            counted[op].append(value)
    return Lifetimes(tuple(map(tuple, last)), tuple(map(tuple, counted)), counts)


def _final_users(users: Mapping[int, Sequence[int]], replay: Replay) -> dict[int, int]:
    """The op that is in every run the last user of a value, for each value that has one."""
    turn = dict(zip(replay.order, range(len(replay.order))))
    latest: dict[int, list[int]] = {}
    for value, ops in users.items():
        latest.setdefault(max(ops, key=turn.__getitem__), []).append(value)
    final: dict[int, int] = {}
    for op, surely in replay.finished():
        final.update((value, op) for value in latest.get(op, ()) if all(map(surely, users[value])))
    return final
