"""Seconds that each policy takes to simulate 16,000 ops on 68 cores.

    python benchmarks/simulator.py

The graph is layered, 4 to 32 ops wide, of 200 different curves with a best thread count between 1 and 68 each; the
machine has 34 tiles of two cores and four hardware threads a core, as the Xeon Phi 7250. "making" is a policy's own
preparation, which for manual_grid and critical_path holds the search for their setting. Seconds are processor time,
the better of two runs, so that a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from threadcast.core import CurveTable, Edge, Machine, Op, OpGraph
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Policy, Problem, create
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.simulation.simulator import Simulation

OPS, CURVES, SEED = 16_000, 200, 20180421
LIMIT_S = 1.0
"""What a policy's simulation may take."""
T = TypeVar("T")
RUNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fifo", {}),
    ("uniform", {"inter": 4, "intra": 17}),
    ("uniform", {"inter": 4, "intra": 34}),
    ("manual_grid", {}),
    ("strategies_1", {}),
    ("strategies_1_2", {}),
    ("strategies_1_2_3", {}),
    ("strategies", {}),
    ("critical_path", {"executors": 8}),
    ("critical_path", {}),
)


def layered_graph(rng: np.random.Generator) -> OpGraph:
    """Layers of 4 to 32 ops; each op waits for one to three ops of the layer before."""
    edges: list[Edge] = []
    before: list[int] = []
    count = 0
    while count < OPS:
        layer = list(range(count, min(OPS, count + int(rng.integers(4, 33)))))
        count += len(layer)
        for op in layer if before else ():
            sources = rng.choice(before, size=min(len(before), int(rng.integers(1, 4))), replace=False)
            edges += [Edge(int(source), op) for source in sources]
        before = layer
    kinds = [f"kind{i % 20}" for i in range(OPS)]
    return OpGraph(tuple(f"op{i}" for i in range(OPS)), tuple(map(Op, kinds)), tuple(edges))


def curves(rng: np.random.Generator, machine: Machine) -> CurveTable:
    """Serial part, parallel part and a cost per thread, with 5 % of jags; 10 us to 10 ms on one thread."""
    cases = machine.cases()
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    work_s = 10.0 ** rng.uniform(-5, -2, size=(CURVES, 1))
    serial = rng.uniform(0.005, 0.2, size=(CURVES, 1))
    fork_s = work_s * 10.0 ** rng.uniform(-4, -2, size=(CURVES, 1))
    seconds = work_s * (serial + (1 - serial) / threads) + fork_s * threads
    seconds *= rng.uniform(0.95, 1.05, size=seconds.shape)
    seconds = seconds[rng.integers(0, CURVES, size=OPS)]
    return CurveTable(cases, seconds, seconds, seconds, np.zeros(seconds.shape, dtype=np.int8))


def main() -> int:
    """Print one line a policy; exit code 1 where a simulation took `LIMIT_S` or more."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    rng = np.random.default_rng(SEED)
    machine = Machine.uniform("simulated Xeon Phi 7250", 68, group_size=2, threads_per_core=4)
    problem = Problem(layered_graph(rng), curves(rng, machine), machine)
    bound_s = lower_bounds(problem).best_s
    print(f"{OPS} ops, {len(problem.graph.edges)} edges, {len(machine)} cores, lower bound {bound_s:.4g} s")
    print(f"{'policy':38s} {'making s':>9s} {'simulating s':>13s} {'makespan s':>11s} {'over bound':>11s}")
    slowest = 0.0
    for name, options in RUNS:
        making_s, policy = timed(lambda name=name, options=options: create(name, problem, **options))
        simulating_s, makespan_s = timed(lambda policy=policy: simulated_s(policy))
        slowest = max(slowest, simulating_s)
        shown = name + "".join(f" {key}={value}" for key, value in options.items())
        print(f"{shown:38s} {making_s:9.2f} {simulating_s:13.2f} {makespan_s:11.4g} {makespan_s / bound_s:11.2f}")
    planning_s, planned = timed(lambda: plan(problem))
    print(f"plan, policy auto: {planning_s:.2f} s, took {planned.policy}")
    replay_s, _ = timed(lambda: simulated_s(PlanReplay(problem, plan=planned)))
    print(f"replay of that plan, checked: {replay_s:.2f} s")
    return int(slowest >= LIMIT_S)


def simulated_s(policy: Policy) -> float:
    """The makespan, by a whole run."""
    run = Simulation(policy)
    run.run()
    return run.now_s


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Processor seconds of the better of two calls, and what the last one returned."""
    seconds = []
    for _ in range(2):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return min(seconds), result


if __name__ == "__main__":
    sys.exit(main())
