"""A random topological order, for tests of what must not depend on the order."""

from __future__ import annotations

import random

from threadcast.core import OpGraph


def random_order(graph: OpGraph, rng: random.Random) -> list[int]:
    """The ops in an order drawn by `rng` in which each comes after its predecessors."""
    waiting = [len(before) for before in graph.predecessors]
    ready = [op for op, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        op = ready.pop(rng.randrange(len(ready)))
        order.append(op)
        for successor in graph.successors[op]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                ready.append(successor)
    return order
