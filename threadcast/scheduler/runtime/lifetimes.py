"""Which op is the last to use each value, so that memory does not grow past eager's, in whatever order ops run."""

from __future__ import annotations

from dataclasses import dataclass

from threadcast.collector.program import Program
from threadcast.collector.values import find_refs
from threadcast.scheduler.runtime.replay import Replay


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When slots are emptied.

    `last[op]` are slots that nothing uses once `op` has finished. The users of the others may finish in several
    orders: `counted[op]` are those that `op` uses, `users[slot]` how many users they have, and whoever is the last
    empties them.
    """

    last: tuple[tuple[int, ...], ...]
    counted: tuple[tuple[int, ...], ...]
    users: dict[int, int]


def lifetimes(program: Program, replay: Replay) -> Lifetimes:
    """Return when the slots that nodes fill can be emptied under `replay`; outputs never are."""
    kept = {ref.slot for ref in find_refs(program.outputs)}
    users: list[list[int]] = [[] for _ in program.nodes]
    for op, slots in enumerate(program.touches):
        for slot in slots:
            if slot >= len(program.inputs):
                users[slot - len(program.inputs)].append(op)
    last: list[list[int]] = [[] for _ in program.nodes]
    counted: list[list[int]] = [[] for _ in program.nodes]
    counts: dict[int, int] = {}
    for made, ops in enumerate(users):
        slot = program.slot_of(made)
        if slot in kept:
            continue
        final = next((op for op in reversed(ops) if all(replay.surely_before(other, op) for other in ops)), None)
        if final is not None:
            last[final].append(slot)
            continue
        counts[slot] = len(ops)
        for op in ops:
            counted[op].append(slot)
    return Lifetimes(tuple(map(tuple, last)), tuple(map(tuple, counted)), counts)
