"""From a problem to short schedules: many allotments, list scheduling, then local search until the budget ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from threadcast.scheduler.kernels.compiled import COMPILED, UNCOMPILED
from threadcast.scheduler.kernels.instance import Floats, Instance, Ints
from threadcast.scheduler.kernels.schedule_loops import dispatch, tails
from threadcast.scheduler.search.allotments import balanced, shares, widest_within
from threadcast.scheduler.search.annealing import COLD, WARM, anneal, insert_all, justify
from threadcast.scheduler.search.solution import Solution

LIMITS = (1.0, 1.07, 1.2, 1.45)
"""Limits on the critical path that allotments are made for at first, over the lower bound."""
FINER = (0.93, 0.96, 0.98, 1.02, 1.04, 1.08)
"""Limits around those of the best allotments, relative to them."""
REFINED = 4
"""Best allotments that are refined."""

ANNEALED = 3000
"""Ops up to which schedules are annealed; rebuilding longer ones takes so long that changing many ops at once wins."""
ANNEALING_S = 3.0
"""About twice what all moves take on one core by PER_OP_S and PER_PAIR_S, as half of each is given up early. The number
of moves follows from it."""
PER_OP_S, PER_PAIR_S = 50e-9, 0.2e-9
"""What `insert` takes for n ops: n of the one and n * n of the other (AMD EPYC, 60 and 1,000 ops)."""
MOST_MOVES, MOVES_A_PAIR = 1_000_000, 2_000
"""No more moves than these, and than these for every pair of ops."""
TRIES, SMALL_TRIES, SMALL = 2, 4, 100
"""Starts that are annealed; more of graphs of at most SMALL ops, on which the moves suffice for that."""
KEPT = 8
"""Schedules that a search returns at most."""
CHUNKS = 16
"""Parts of an annealing between which the clock is read."""

BULK_OPS = 2_500_000
"""Ops placed in all bulk moves on large graphs: about 0.8 s at 0.3 us each."""


Variant = tuple[bool, bool]
"""`reserve` and `adapt` of `dispatch`."""
PLAIN, ADAPTING = (False, False), (False, True)
VARIANTS: tuple[Variant, ...] = (PLAIN, ADAPTING, (True, False), (True, True))


Start = tuple[Solution, int, Ints, float]
"""A schedule, and the limits on widths (with their number) and on the critical path that it was made for."""


class Search:
    """Looks for short schedules of `instance` until `deadline_s` by `clock`, or until one is as short as `bound_s`.

    `given` are choices that it tries besides its own.

    The same instance and seed give the same schedules wherever the deadline does not cut the work short.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        bound_s: float,
        given: Sequence[Ints] = (),
        seed: int = 0,
        deadline_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.instance = instance
        self._bound_s, self._given = bound_s, given
        self._enough_s = bound_s * (1 + 1e-9)
        self._deadline_s, self._clock = deadline_s, clock
        self._random = np.random.default_rng(seed)
        self._tail: Floats = np.empty(len(instance))
        self._best: Solution | None = None
        self._variant = PLAIN

    def run(self) -> list[Solution]:
        """Return the shortest schedule found, and behind it others that were found on other ways."""
        starts = self._starts()
        found = self._anneal(starts) if len(self.instance) <= ANNEALED else self._change_many()
        shortest: dict[float, Solution] = {}
        for solution in sorted([*found, *starts], key=lambda solution: solution.makespan_s):
            shortest.setdefault(solution.makespan_s, solution)
        return list(shortest.values())[:KEPT]

    def _over(self) -> bool:
        if self._best is None:
            return False
        return self._best.makespan_s <= self._enough_s or self._clock() >= self._deadline_s

    def _starts(self) -> list[Solution]:
        """List-schedule many allotments, then some around the best; the shortest for each set of limits on widths."""
        tried: list[Start] = []
        for number, widest in enumerate(self._widest()):
            if self._over():
                break
            tried.append((self._dispatched(widest_within(self.instance, widest), ADAPTING), number, widest, 0.0))
            for limit in LIMITS:
                if self._over() and len(tried) > 1:  # all cores to each op alone can be far from good
                    break
                choice = balanced(self.instance, self._bound_s * limit, widest)
                tried.append((self._dispatched(choice, ADAPTING), number, widest, limit))
        tried.sort(key=_length)
        for solution, number, widest, limit in tried[:REFINED]:
            tried += [(self._dispatched(solution.choice, variant), number, widest, limit) for variant in VARIANTS]
            for factor in FINER if limit else ():
                choice = balanced(self.instance, self._bound_s * limit * factor, widest)
                for variant in (PLAIN, ADAPTING):
                    if self._over():
                        break
                    tried.append((self._dispatched(choice, variant), number, widest, limit * factor))
        nothing = np.empty(0, dtype=np.int32)
        for i, choice in enumerate(self._given):
            tried += [(self._dispatched(choice, variant), -1 - i, nothing, 0.0) for variant in VARIANTS]
        shortest: dict[int, Solution] = {}
        for solution, number, _, _ in sorted(tried, key=_length):
            shortest.setdefault(number, solution)
        return list(shortest.values())

    def _widest(self) -> list[Ints]:
        """Limits on the ops' widths: the same for all, or a level's share by work."""
        n, cores = len(self.instance), self.instance.cores
        uniform = {max(1, round(cores / 2 ** (k / 2))) for k in range(2 * cores.bit_length())} | {1, cores}
        found = [np.full(n, width, dtype=np.int32) for width in sorted(uniform, reverse=True)]
        for late in (False, True):
            share = shares(self.instance, late=late)
            found += [np.minimum(share * factor, cores).astype(np.int32) for factor in (1.0, 1.5)]
        return found

    def _dispatched(self, choice: Ints, variant: Variant, noise: Floats | None = None) -> Solution:
        instance = self.instance
        tails(instance.order, instance.after_at, instance.after, instance.times(choice), self._tail)
        key = -self._tail if noise is None else -self._tail * noise
        start, choice = np.empty(len(instance)), choice.copy()
        found_s = dispatch(
            key, instance.before_at, instance.after_at, instance.after, instance.width, instance.seconds,
            instance.choices, instance.cores, *variant, choice, start,
        )  # fmt: skip
        solution = Solution(choice, start, float(found_s))
        if self._best is None or solution.makespan_s < self._best.makespan_s:
            self._best, self._variant = solution, variant
        return solution

    def _anneal(self, starts: list[Solution]) -> list[Solution]:
        """Anneal from the shortest starts in turn, with justification between the chunks."""
        instance, n = self.instance, len(self.instance)
        moves_s = ANNEALING_S / (1 if COMPILED else UNCOMPILED)
        moves = min(int(moves_s / (n * (PER_OP_S + PER_PAIR_S * n))), MOST_MOVES, MOVES_A_PAIR * n * n)
        state = np.array([self._random.integers(1, 2**63)], dtype=np.uint64)
        tries = min(len(starts), SMALL_TRIES if n <= SMALL else TRIES)
        found: list[Solution] = []
        for solution in starts[:tries]:
            order, choice = solution.order(instance), solution.choice.copy()
            order, best_s = justify(instance, order, choice)
            for chunk in range(CHUNKS):
                if self._over():
                    break
                warm_s, cold_s = (best_s * WARM * (COLD / WARM) ** (k / CHUNKS) for k in (chunk, chunk + 1))
                with np.errstate(over="ignore"):  # the random numbers' product, where it is not compiled
                    anneal(
                        instance.before_at, instance.before, instance.after_at, instance.after, instance.width,
                        instance.seconds, instance.choices, instance.cores, order, choice, state,
                        moves // tries // CHUNKS, warm_s, cold_s, self._enough_s,
                    )  # fmt: skip
                order, best_s = justify(instance, order, choice)
            start = np.empty(n)
            insert_all(instance, order, instance.widths(choice), instance.times(choice), start)
            found.append(Solution(choice, start, best_s))
            if self._best is None or best_s < self._best.makespan_s:
                self._best = found[-1]
        return found

    def _change_many(self) -> list[Solution]:
        """Change the counts of many ops at once, and the order by noise; keep what is shorter."""
        instance, random = self.instance, self._random
        share = 0.05
        for _ in range(BULK_OPS // len(instance)):
            before = self._best
            if before is None or self._over():
                break
            choice = before.choice.copy()
            seconds = instance.times(choice)
            tails(instance.order, instance.after_at, instance.after, seconds, self._tail)
            urgent = before.start + self._tail >= before.makespan_s * (1 - 0.02)
            chosen = random.random(len(choice)) < share
            step = np.where(random.random(len(choice)) < np.where(urgent, 0.8, 0.2), 1, -1)
            changed = np.clip(choice + step, 0, instance.choices - 1).astype(np.int32)
            choice = np.where(chosen, changed, choice).astype(np.int32)
            noise = 1 + 0.02 * random.standard_normal(len(choice)) if random.random() < 0.3 else None
            self._dispatched(choice, self._variant if random.random() < 0.8 else VARIANTS[random.integers(4)], noise)
            share = min(0.3, share * 1.5) if self._best is not before else max(2 / len(choice), share * 0.95)
        return [] if self._best is None else [self._best]


def _length(entry: Start) -> float:
    return entry[0].makespan_s
