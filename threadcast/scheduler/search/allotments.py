"""Thread counts to start the search from: a balance of the critical path against the work."""

from __future__ import annotations

import numpy as np

from threadcast.scheduler.search.compiled import compiled
from threadcast.scheduler.search.instance import Floats, Instance, Ints
from threadcast.scheduler.search.schedule_loops import tails

PASSES = 4
"""Rounds in which slack is given away; later ones change next to nothing."""


@compiled
def stretch(
    order: Ints, before_at: Ints, before: Ints, after_at: Ints, after: Ints, width: Ints, seconds: Floats,
    choices: Ints, widest: int, limit_s: float, choice: Ints,
) -> None:  # fmt: skip
    """Fill `choice` with frugal counts of at most `widest` under which no path lasts longer than `limit_s`.

    Each op may last `limit_s` over the longest path through it times as long as it does; then no path, which is
    nowhere longer than the longest ones through its ops, exceeds the limit. Of the counts that last no longer the
    one of least work is taken, and what slack remains is given away in the next round. Where even the fastest
    counts take longer than `limit_s`, they stay.
    """
    n = len(order)
    lasts, tail, head = np.empty(n), np.empty(n), np.empty(n)
    for op in range(n):
        last = choices[op] - 1
        while last > 0 and width[op, last] > widest:
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


def balanced(instance: Instance, limit_s: float, *, widest: int | None = None) -> Ints:
    """Return a choice for each op by `stretch`."""
    choice = np.empty(len(instance), dtype=np.int32)
    stretch(
        instance.order, instance.before_at, instance.before, instance.after_at, instance.after, instance.width,
        instance.seconds, instance.choices, instance.cores if widest is None else widest, limit_s, choice,
    )  # fmt: skip
    return choice


def balance_point_s(instance: Instance, *, widest: int | None = None, steps: int = 24) -> float:
    """Return the limit at which the work over the cores equals it, for `balanced` allotments of at most `widest`."""
    tail = np.empty(len(instance))
    low = tails(instance.order, instance.after_at, instance.after, instance.seconds[:, -1].copy(), tail)
    high = max(low, float(instance.seconds[:, 0].sum()))
    for _ in range(steps):
        middle = (low * high) ** 0.5 if low > 0 else high / 2
        choice = balanced(instance, middle, widest=widest)
        work_s = float(instance.widths(choice) @ instance.times(choice)) / instance.cores
        if work_s > middle:
            low = middle
        else:
            high = middle
    return high


def uniform(instance: Instance, threads: int) -> Ints:
    """Each op's widest useful choice of at most `threads` (its narrowest where there is none)."""
    fits = (instance.width <= threads).sum(axis=1)
    return np.asarray(np.clip(np.minimum(fits, instance.choices) - 1, 0, None), dtype=np.int32)
