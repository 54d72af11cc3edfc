"""Simulated annealing over thread counts and order, for graphs that can be scheduled anew thousands of times."""

from __future__ import annotations

import math

import numpy as np

from threadcast.scheduler.kernels.compiled import compiled
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints
from threadcast.scheduler.kernels.schedule_loops import insert, tails

WARM, COLD = 0.02, 0.0005
"""Temperatures at the beginning and at the end, relative to the makespan."""
FRUGALITY = 0.3
"""What a second of work over the cores costs, in seconds of makespan: spared cores are room for other ops."""
P_TRADE, P_COUNT, P_BOTH = 0.15, 0.3, 0.2
"""Shares of moves that change an op's thread count and give or take the cores of one beside it; that change its count
alone, or with its place. The others change its place."""
P_CRITICAL = 0.6
"""Share of moves of an op on a critical chain."""


@compiled
def draw(state: np.ndarray) -> float:
    """The next number in [0, 1) of xorshift64* (Vigna 2016); `state` is one uint64, not 0."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@compiled
def critical_chain(
    before_at: Ints, before: Ints, seconds: Floats, start: Floats, makespan: float, state: np.ndarray, chain: Ints
) -> int:
    """Fill `chain` with ops, each of which starts when the next finishes, from the end; return how many."""
    n = len(start)
    slack = 1e-12 * makespan
    count, wanted = 0, makespan
    while count < n:
        found, seen = -1, 0
        for op in range(n):
            if abs(start[op] + seconds[op] - wanted) <= slack and (seconds[op] > 0.0 or start[op] < wanted):
                seen += 1
                if draw(state) * seen < 1.0:
                    found = op
        if found < 0:
            break
        chain[count] = found
        count += 1
        wanted = start[found]
        if wanted <= slack:
            break
    return count


@compiled
def some_op(n: int, chain: Ints, on_chain: int, state: np.ndarray) -> int:
    """The op to move: often one of the first `on_chain` of `chain`."""
    if on_chain > 0 and draw(state) < P_CRITICAL:
        return int(chain[int(draw(state) * on_chain)])
    return int(draw(state) * n)


@compiled
def other_choice(old: int, choices: int, state: np.ndarray) -> int:
    """Another of the op's `choices`, mostly the next one up or down."""
    if draw(state) < 0.7:
        new = old + (1 if draw(state) < 0.5 else -1)
        return new if 0 <= new < choices else 2 * old - new
    new = int(draw(state) * (choices - 1))
    return new + 1 if new >= old else new


@compiled
def some_place(
    op: int, before_at: Ints, before: Ints, after_at: Ints, after: Ints, place: Ints, state: np.ndarray
) -> int:
    """A place in the order that is behind all that the op waits for and before all that waits for it."""
    low, high = 0, len(place) - 1
    for e in range(before_at[op], before_at[op + 1]):
        low = max(low, place[before[e]] + 1)
    for e in range(after_at[op], after_at[op + 1]):
        high = min(high, place[after[e]] - 1)
    return low + int(draw(state) * (high - low + 1))


@compiled
def anneal(
    before_at: Ints, before: Ints, after_at: Ints, after: Ints, all_widths: Ints, all_seconds: Floats, choices: Ints,
    cores: int, order: Ints, choice: Ints, state: np.ndarray, moves: int, warm_s: float, cold_s: float, enough_s: float,
) -> float:  # fmt: skip
    """Improve `order` and `choice` in place by `moves` moves; return the best makespan, which they then have.

    Ends early at a makespan of at most `enough_s`.
    """
    n = len(order)
    width, seconds = np.empty(n, dtype=np.int32), np.empty(n)
    for op in range(n):
        width[op], seconds[op] = all_widths[op, choice[op]], all_seconds[op, choice[op]]
    start, time, free = np.empty(n), np.empty(2 * n + 2), np.empty(2 * n + 2, dtype=np.int32)
    place = np.empty(n, dtype=np.int32)
    for k in range(n):
        place[order[k]] = k
    fastest, behind, graph_order = np.empty(n), np.empty(n), order.copy()
    for op in range(n):
        fastest[op] = all_seconds[op, choices[op] - 1]
    tails(graph_order, after_at, after, fastest, behind)
    for op in range(n):
        behind[op] -= fastest[op]
        behind[op] *= 1 - 1e-12
    now = insert(order, before_at, before, width, seconds, cores, behind, np.inf, start, time, free)
    best, best_order, best_choice = now, order.copy(), choice.copy()
    work = 0.0
    for op in range(n):
        work += width[op] * seconds[op]
    best_work = work
    held = start.copy()
    chain = np.empty(n, dtype=np.int32)
    on_chain = critical_chain(before_at, before, seconds, start, now, state, chain)
    for move in range(moves):
        if best <= enough_s:
            break
        temperature = warm_s * (cold_s / warm_s) ** (move / moves)
        op = some_op(n, chain, on_chain, state)
        old, begin, end = choice[op], place[op], place[op]
        other, other_old, new_work = -1, 0, work
        kind = draw(state)
        if choices[op] > 1 and kind < P_COUNT + P_BOTH + P_TRADE:
            new = other_choice(old, choices[op], state)
            if kind < P_TRADE:
                other = _beside(op, held, seconds, int(draw(state) * n))
            if other >= 0:
                other_old = choice[other]
                room = width[op] + width[other] - all_widths[op, new]
                traded = _widest(all_widths, choices, other, room)
                new_work += all_widths[other, traded] * all_seconds[other, traded] - width[other] * seconds[other]
                _set(other, traded, all_widths, all_seconds, choice, width, seconds)
            new_work += all_widths[op, new] * all_seconds[op, new] - width[op] * seconds[op]
            _set(op, new, all_widths, all_seconds, choice, width, seconds)
        if kind >= P_COUNT + P_TRADE or choices[op] == 1:
            end = some_place(op, before_at, before, after_at, after, place, state)
            if end == begin and choice[op] == old:
                continue
            shift(order, place, begin, end)
        limit_s = now - FRUGALITY * (new_work - work) / cores - temperature * math.log(1.0 - draw(state))
        found = insert(order, before_at, before, width, seconds, cores, behind, limit_s, start, time, free)
        if found <= limit_s:
            changed = found != now
            now, work = found, new_work
            held[:] = start
            if now < best or (now == best and work < best_work):
                best, best_work = now, work
                best_order[:] = order
                best_choice[:] = choice
            if changed:
                on_chain = critical_chain(before_at, before, seconds, start, now, state, chain)
        else:
            shift(order, place, end, begin)
            _set(op, old, all_widths, all_seconds, choice, width, seconds)
            if other >= 0:
                _set(other, other_old, all_widths, all_seconds, choice, width, seconds)
    order[:] = best_order
    choice[:] = best_choice
    return best


@compiled
def _set(op: int, new: int, all_widths: Ints, all_seconds: Floats, choice: Ints, width: Ints, seconds: Floats) -> None:
    choice[op], width[op], seconds[op] = new, all_widths[op, new], all_seconds[op, new]


@compiled
def _beside(op: int, start: Floats, seconds: Floats, begin: int) -> int:
    """An op that runs at some time at which `op` does, looked for from `begin` on; -1 where there is none."""
    n = len(start)
    for k in range(n):
        other = (begin + k) % n
        if other != op and start[other] < start[op] + seconds[op] and start[op] < start[other] + seconds[other]:
            return other
    return -1


@compiled
def _widest(all_widths: Ints, choices: Ints, op: int, room: int) -> int:
    """The op's widest choice within `room` cores, or its narrowest."""
    best = 0
    for c in range(1, choices[op]):
        if all_widths[op, c] <= room:
            best = c
    return best


@compiled
def shift(order: Ints, place: Ints, begin: int, end: int) -> None:
    """Move the op at place `begin` to place `end`."""
    op = order[begin]
    step = 1 if end > begin else -1
    for k in range(begin, end, step):
        order[k] = order[k + step]
        place[order[k]] = k
    order[end] = op
    place[op] = end


def justify(instance: Instance, order: Ints, choice: Ints) -> tuple[Ints, float]:
    """Return an order whose schedule is no longer, and its makespan: push everything to the end, then to the start.

    Source: Valls, Ballestin and Quintanilla, Justification and RCPSP, 2005.
    """
    width, seconds = instance.widths(choice), instance.times(choice)
    backwards = instance.reversed()
    best_order, best_s = order, math.inf
    while True:
        start = np.empty(len(order))
        found_s = insert_all(instance, best_order, width, seconds, start)
        if not found_s < best_s:
            return best_order, best_s
        kept = best_order
        best_s = found_s
        finish = start + seconds
        last_first = np.lexsort((-_places(kept), -finish)).astype(np.int32)
        mirrored = np.empty(len(order))
        insert_all(backwards, last_first, width, seconds, mirrored)
        candidate = np.lexsort((_places(kept), -(mirrored + seconds))).astype(np.int32)
        if insert_all(instance, candidate, width, seconds, start) >= best_s:
            return kept, best_s
        best_order = candidate


def insert_all(instance: Instance, order: Ints, width: Ints, seconds: Floats, start: Floats) -> float:
    """`insert` with room of its own."""
    n = len(order)
    return float(
        insert(
            order, instance.before_at, instance.before, width, seconds, instance.cores, np.zeros(n), np.inf, start,
            np.empty(2 * n + 2), np.empty(2 * n + 2, dtype=np.int32),
        )
    )  # fmt: skip


def _places(order: Ints) -> Ints:
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place
