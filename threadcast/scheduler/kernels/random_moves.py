"""Random choices of annealing: an op, another thread count for it, another place in the order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.kernels.compiled import helper
from threadcast.scheduler.kernels.instance import Floats, Ints
from threadcast.scheduler.problem.compressed_rows import CompressedRows

P_CRITICAL = 0.6
"""Share of moves that move an op on a critical chain."""
P_NEIGHBOUR = 0.7
"""Share of changes of a thread count that go to the next useful count up or down."""

RandomState = NDArray[np.uint64]
"""State of the random numbers: (1,) uint64, not 0; each draw changes it."""


class Cooling(NamedTuple):
    """How to anneal: the number of moves, and two temperatures between which it falls geometrically, in seconds.

    Annealing ends early at a makespan of at most `enough_s`.

    A move that makes the schedule longer by the temperature is accepted with probability 1/e.
    """

    moves: int
    first_s: float
    last_s: float
    enough_s: float


@helper
def draw(random: RandomState) -> float:
    """Return the next random number in [0, 1), by xorshift64* (Vigna 2016)."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@helper
def critical_chain(seconds: Floats, start: Floats, makespan: float, random: RandomState, chain: Ints) -> int:
    """Fill `chain` with ops, each of which starts when the next finishes, from the last op on; return how many."""
    n = len(start)
    slack = 1e-12 * makespan
    count, wanted = 0, makespan
    while count < n:
        found, candidates = -1, 0
        for op in range(n):
            if abs(start[op] + seconds[op] - wanted) <= slack and (seconds[op] > 0.0 or start[op] < wanted):
                candidates += 1
                if draw(random) * candidates < 1.0:
                    found = op
        if found < 0:
            break
        chain[count] = found
        count += 1
        wanted = start[found]
        if wanted <= slack:
            break
    return count


@helper
def some_op(n: int, chain: Ints, on_chain: int, random: RandomState) -> int:
    """Return an op to move: often one of the first `on_chain` of `chain`."""
    if on_chain > 0 and draw(random) < P_CRITICAL:
        return int(chain[int(draw(random) * on_chain)])
    return int(draw(random) * n)


@helper
def other_choice(old: int, choices: int, random: RandomState) -> int:
    """Return a choice other than `old` among an op's `choices`, of which there must be at least two."""
    if draw(random) < P_NEIGHBOUR:
        new = old + (1 if draw(random) < 0.5 else -1)
        return new if 0 <= new < choices else 2 * old - new
    new = int(draw(random) * (choices - 1))
    return new + 1 if new >= old else new


@helper
def some_place(
    op: int, predecessors: CompressedRows, successors: CompressedRows, place: Ints, random: RandomState
) -> int:
    """Return a place in the order behind all that `op` waits for and before all that waits for it."""
    low, high = 0, len(place) - 1
    for e in range(predecessors.indptr[op], predecessors.indptr[op + 1]):
        low = max(low, place[predecessors.indices[e]] + 1)
    for e in range(successors.indptr[op], successors.indptr[op + 1]):
        high = min(high, place[successors.indices[e]] - 1)
    return low + int(draw(random) * (high - low + 1))


@helper
def shift(order: Ints, place: Ints, begin: int, end: int) -> None:
    """Move the op at place `begin` of the order to place `end`; `place` (n_ops,) is each op's place."""
    op = order[begin]
    step = 1 if end > begin else -1
    for k in range(begin, end, step):
        order[k] = order[k + step]
        place[order[k]] = k
    order[end] = op
    place[op] = end
