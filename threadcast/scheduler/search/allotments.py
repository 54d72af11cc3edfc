"""Thread counts to start the search from: a balance of the critical path against the work."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints
from threadcast.scheduler.kernels.schedule_loops import tails

PASSES = 4
"""Rounds in which slack is given away; later ones change next to nothing."""


@compiled
def stretch(
    order: Ints, before_at: Ints, before: Ints, after_at: Ints, after: Ints, width: Ints, seconds: Floats,
    choices: Ints, widest: Ints, limit_s: float, choice: Ints,
) -> None:  # fmt: skip
    """Fill `choice` with frugal counts under which no path lasts longer than `limit_s`.

    No op gets more than its `widest` cores.

    Each op may last `limit_s` over the longest path through it times as long as it does; then no path, which is
    nowhere longer than the longest ones through its ops, exceeds the limit. Of the counts that last no longer the
    one of least work is taken, and what slack remains is given away in the next round. Where even the fastest
    counts take longer than `limit_s`, they stay.
    """
    n = len(order)
    lasts, tail, head = np.empty(n), np.empty(n), np.empty(n)
    for op in range(n):
        last = choices[op] - 1
        while last > 0 and width[op, last] > widest[op]:
            last -= 1
        choice[op] = last
        lasts[op] = seconds[op, last]
    for _ in range(PASSES):
        tails(order, after_at, after, lasts, tail)
        for k in range(n):
            op = order[k]
            begin = 0.0
            for e in range(before_at[op], before_at[op + 1]):
                begin = max(begin, head[before[e]] + lasts[before[e]])
            head[op] = begin
        changed = False
        for op in range(n):
            path = head[op] + tail[op]
            if path <= 0.0 or path > limit_s:
                continue
            allowed = lasts[op] * (limit_s / path) * (1 + 1e-12)
            best, work = choice[op], width[op, choice[op]] * seconds[op, choice[op]]
            for c in range(choice[op] - 1, -1, -1):
                if seconds[op, c] > allowed:
                    break
                if width[op, c] * seconds[op, c] < work:
                    best, work = c, width[op, c] * seconds[op, c]
            if best != choice[op]:
                changed = True
                choice[op] = best
                lasts[op] = seconds[op, best]
        if not changed:
            break


def balanced(instance: Instance, limit_s: float, widest: Ints) -> Ints:
    """Return a choice for each op by `stretch`; `widest`: (n_ops,) cores that each gets at most."""
    choice = np.empty(len(instance), dtype=np.int32)
    stretch(
        instance.order, instance.before_at, instance.before, instance.after_at, instance.after, instance.width,
        instance.seconds, instance.choices, widest, limit_s, choice,
    )  # fmt: skip
    return choice


def shares(instance: Instance, *, late: bool) -> Floats:
    """(n_ops,) cores of each op if the ops of a precedence level share them by their work, at least 1.

    A level is as many edges from the start of the graph, or with `late` from its end. That ops of a level together
    get no more cores than there are is MCPA's rule (Bansal, Kumar and Singh 2006).
    """
    level = np.zeros(len(instance), dtype=np.int32)
    _depths(*((instance.order[::-1], instance.before_at, instance.before) if late else
              (instance.order, instance.after_at, instance.after)), level)  # fmt: skip
    work = instance.width[:, 0] * instance.seconds[:, 0]
    of_level = np.bincount(level, work)[level]
    even = 1 / np.bincount(level)[level]
    share = np.divide(work, of_level, out=even, where=of_level > 0)
    return np.asarray(np.maximum(share * instance.cores, 1.0))


@compiled
def _depths(order: Ints, after_at: Ints, after: Ints, level: Ints) -> None:
    for k in range(len(order)):
        op = order[k]
        for e in range(after_at[op], after_at[op + 1]):
            level[after[e]] = max(level[after[e]], level[op] + 1)


def widest_within(instance: Instance, widest: Ints) -> Ints:
    """Each op's widest useful choice of at most `widest` (n_ops,) cores; its narrowest where there is none."""
    fits = (instance.width <= widest[:, None]).sum(axis=1)
    return np.asarray(np.clip(np.minimum(fits, instance.choices) - 1, 0, None), dtype=np.int32)
