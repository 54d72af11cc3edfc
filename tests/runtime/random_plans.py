"""Random plans and made-up curves for tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from tests.random_order import random_order
from threadcast.capture.graph.captured import Captured
from threadcast.core import Curve, CurveTable, Machine, OpGraph, Placement, Plan
from threadcast.runtime.engine.engine import Engine

MOST_TEAMS = 24
"""Teams of threads in a plan; on 16 cores a team for each op would be more threads than an engine starts."""


def make_random_plan(
    graph: OpGraph, cores: tuple[int, ...], *, seed: int, max_factor: int = 1, max_width: int | None = None,
    most_teams: int = MOST_TEAMS,
) -> Plan:  # fmt: skip
    """A valid plan: a random order, random teams of up to `max_width` cores, `max_factor` threads a core."""
    rng = random.Random(seed)
    teams = [
        (tuple(rng.sample(cores, rng.randint(1, max_width or len(cores)))), rng.randint(1, max_factor),
         rng.randrange(max_factor))
        for _ in range(most_teams)
    ]  # fmt: skip
    free: dict[tuple[int, int], float] = {}
    finish: dict[int, float] = {}
    placements = []
    for op in random_order(graph, rng):
        used, factor, lane = rng.choice(teams)
        lanes = [(core, lane + i) for core in used for i in range(factor)]
        earliest = [finish[before] for before in graph.predecessors[op]] + [free.get(lane, 0.0) for lane in lanes]
        start = max(earliest, default=0.0)
        finish[op] = start + rng.choice([0.0, 1.0, 5.0])  # no length at all is legal and ties are where orders go wrong
        free.update(dict.fromkeys(lanes, finish[op]))
        placements.append(Placement(graph.ids[op], used, factor * len(used), start, finish[op], lane))
    return Plan(len(cores), "random", tuple(placements))


def by_random_plans(captured: Captured, machine: Machine, *given: Tensor, plans: int = 3) -> Iterator[Any]:
    """What a graph gives of copies of these arguments by some random plans, one after the other."""
    for seed in range(plans):
        plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=seed)
        with Engine(captured, plan, machine) as engine:
            yield engine.run(captured.bind(*(one.clone() for one in given)))


def made_up_curves(graph: OpGraph, machine: Machine, *, seed: int = 0) -> CurveTable:
    """Curves that fall with threads for some ops and rise for others."""
    rng = np.random.default_rng(seed)
    cases = machine.cases()
    slopes = rng.uniform(-1.0, 0.5, len(graph))
    return CurveTable.of([Curve.exact(cases, [1e-5 * case.threads**slope for case in cases]) for slope in slopes])
