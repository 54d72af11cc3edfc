"""How close the planner comes to the best schedule, and how far it is ahead of others.

    python benchmarks/planner.py [--curves FOLDER] [--seconds 60] [--small 100] [--parts abc] [--write]

Schedules are simulated; only planning times are measured. Curves are real ones, mapped on real graphs
(`planner_instances`). Parts: a) small graphs against CP-SAT, b) the networks' graphs against every baseline and the
lower bound, c) curves that are off by up to 20 %. Part a takes the better part of an hour, and goes on where it was
broken off.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

import numpy as np
from cp_sat import OPTIMAL, solve
from figures.planner import BASELINES, NETWORKS, OVER, SMALL
from figures.study import Study, of_run
from planner_instances import (
    GROUPED,
    Pool,
    grouped_problem,
    network,
    network_names,
    perturbed,
    problem,
    small,
)
from run_facts import RunFacts

from threadcast.core import OpGraph, Plan
from threadcast.core.json_writing import write_json
from threadcast.scheduler.bounds.lower_bounds import lower_bounds
from threadcast.scheduler.planner import SEARCH, plan
from threadcast.scheduler.policies import Problem, create
from threadcast.scheduler.policies.plan_replay import PlanReplay
from threadcast.scheduler.simulation.checker import check_schedule
from threadcast.scheduler.simulation.simulator import simulate

SEED = 20260114
PAPERS = ("strategies", "critical_path")
CORES = (4, 16, 48, 68, 128)
IOS_OPS = 2_000
"""Ops up to which IOS is run: it takes minutes beyond."""

MOST_OPS = 2_000
"""Most ops of a network that part c plans, each many times."""

KEPT = Path("build/planner-cp-sat.json")
"""CP-SAT's answers by problem and time, since all of them together take the better part of an hour."""

Rows = list[dict[str, object]]
Packed = tuple[str, int]
"""A graph as JSON, and how many cores it has: what goes to another process."""
Solved = Sequence[float]
"""CP-SAT's makespan (0 where it found none), its bound, and whether it is optimal."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=os.environ.get("CURVES"), help="folder of wide CSV files")
    parser.add_argument("--seconds", type=float, default=60.0, help="CP-SAT's time for each small graph")
    parser.add_argument("--small", type=int, default=100, help="small graphs")
    parser.add_argument("--parts", default="abc")
    parser.add_argument("--write", action="store_true", help=f"{NETWORKS.writes}, with the other parts that were run")
    given = parser.parse_args()
    pool = Pool.read(Path(given.curves) if given.curves else None)
    run = f"{of_run(RunFacts.now())}, curves: {pool.source}"
    plan(next(small(1, pool, seed=0))[1], policy=SEARCH)  # compiles the search, which is not timed
    over: dict[str, dict[str, object]] = {name: dict.fromkeys(OVER.columns) | {"baseline": name} for name in BASELINES}
    parts: dict[str, tuple[Study, Callable[[], Rows]]] = {
        "b": (NETWORKS, partial(on_networks, pool, over)),
        "c": (OVER, partial(with_errors, pool, over)),
        "a": (SMALL, partial(against_cp_sat, pool, count=given.small, seconds=given.seconds)),
    }
    found = {study.name: (study, part()) for letter, (study, part) in parts.items() if letter in given.parts}
    for study, rows in found.values():
        print(study.printed(rows), "\n", flush=True)
    if not given.write:
        return
    made = {name: rows for name, (_, rows) in found.items()}
    if NETWORKS.name in made:
        NETWORKS.store(made[NETWORKS.name], run)
    if SMALL.name in made:
        SMALL.store(made[SMALL.name], run)
    if set("bc") <= set(given.parts):
        OVER.store(made[OVER.name], run)


def planned(given: Problem) -> tuple[Plan, float]:
    """The search's plan, checked, and the seconds it took."""
    started_s = time.perf_counter()
    made = plan(given, policy=SEARCH)
    took_s = time.perf_counter() - started_s
    check_schedule(given.graph, made, machine=given.machine)
    return made, took_s


def against_cp_sat(pool: Pool, *, count: int, seconds: float) -> Rows:
    """Part a."""
    cases = list(small(count, pool, seed=SEED))
    ours = [planned(given) for _, given in cases]  # alone on the machine, before CP-SAT takes all cores
    workers = max(1, os.cpu_count() or 1)
    best = solved_by_cp_sat([_packed(given) for _, given in cases], seconds, workers)
    found = [(what, made, took_s, other) for (what, _), (made, took_s), other in zip(cases, ours, best)]
    solved = [(what, made.makespan_s / other[0], took_s, other) for what, made, took_s, other in found if other[0]]
    ratios = [ratio for _, ratio, _, _ in solved]
    gaps = [made.makespan_s / max(made.lower_bound_s, other[1]) for _, made, _, other in found]
    own = [made.makespan_s / made.lower_bound_s for _, made, _, _ in found]
    rows = [
        (f"graphs of 10 to 60 ops on 4 to 128 cores, {seconds:g} s of CP-SAT", str(count)),
        ("schedules that CP-SAT found", str(len(solved))),
        ("of these proven optimal", str(sum(other[2] for *_, other in solved))),
        ("mean over CP-SAT's", f"{fmean(ratios):.4f}"), ("worst", f"{max(ratios):.4f}"),
        ("best", f"{min(ratios):.4f}"), ("no longer than CP-SAT's", f"{sum(r <= 1 + 1e-6 for r in ratios)}"),
        ("mean over the better of both lower bounds", f"{fmean(gaps):.4f}"),
        ("mean over the plan's own lower bound", f"{fmean(own):.4f}"),
        ("proven optimal by the plan's own lower bound", f"{sum(over <= 1 + OPTIMAL for over in own)}"),
        ("planning, median s", f"{median(t for _, t in ours):.2f}"),
        ("planning, longest s", f"{max(t for _, t in ours):.2f}"),
    ]  # fmt: skip
    worst = sorted(solved, key=lambda entry: -entry[1])[:5]
    rows += [(f"over CP-SAT's: {what}", f"{ratio:.4f}") for what, ratio, _, _ in worst]
    return [{"what": what, "value": value} for what, value in rows]


def solved_by_cp_sat(packed: Sequence[Packed], seconds: float, workers: int) -> list[Solved]:
    """What `_solved` says of each, kept in KEPT as it comes, so that a run that was broken off goes on."""
    KEPT.parent.mkdir(exist_ok=True)
    known: dict[str, Solved] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    keys = [sha256(f"{seconds} {cores} {graph}".encode()).hexdigest() for graph, cores in packed]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        missing = {processes.submit(_solved, one, seconds): key for key, one in zip(keys, packed) if key not in known}
        for number, future in enumerate(as_completed(missing), 1):
            known[missing[future]] = future.result()
            write_json(KEPT, known)
            print(f"CP-SAT: {number} of {len(missing)} graphs", end="\r", file=sys.stderr)
    return [known[key] for key in keys]


def _packed(given: Problem) -> Packed:
    return json.dumps(given.graph.to_json()), len(given.machine)


def _solved(packed: Packed, seconds: float) -> Solved:
    given = problem(OpGraph.from_json(json.loads(packed[0])), packed[1])
    found = solve(given, seconds)
    return (found.plan.makespan_s if found.plan else 0.0), found.lower_bound_s, found.optimal


def on_networks(pool: Pool, over_baselines: dict[str, dict[str, object]]) -> Rows:
    """Part b; fills in the means over each baseline."""
    rows: Rows = []
    ahead: dict[str, list[float]] = {name: [] for name in BASELINES}
    wide: dict[str, list[float]] = {name: [] for name in PAPERS}
    beaten: dict[str, list[str]] = {name: [] for name in BASELINES}
    for name in network_names():
        graph = network(name, pool, seed=SEED)
        settings = [(str(cores), problem(graph, cores)) for cores in CORES]
        settings += [(machine.name, grouped_problem(graph, machine, seed=SEED)) for machine in GROUPED]
        for cores, given in settings:
            bounds = lower_bounds(given)
            made, took_s = planned(given)
            over: dict[str, float] = {}
            for policy in BASELINES:
                if policy == "ios" and len(given.graph) > IOS_OPS:
                    continue
                trace = simulate(create(policy, given))
                over[policy] = trace.makespan_s / bounds.best_s
                ahead[policy].append(made.makespan_s / trace.makespan_s)
                if made.makespan_s > trace.makespan_s * (1 + 1e-9):
                    beaten[policy].append(f"{name} on {cores} cores {made.makespan_s / trace.makespan_s:.4f}")
            parallelism = float(given.times.seconds[:, 0].sum()) / bounds.critical_path_s
            if parallelism > 2:
                for policy in PAPERS:
                    wide[policy].append(ahead[policy][-1])
            limited = "area" if bounds.area_s > bounds.critical_path_s else "path"
            rows.append({
                "network": name, "ops": len(given.graph), "cores": cores, "limit": limited,
                "work_over_path": f"{parallelism:.1f}", "search": f"{made.makespan_s / bounds.best_s:.3f}",
                **{policy: f"{over[policy]:.2f}" if policy in over else None for policy in BASELINES},
                "planned_s": f"{took_s:.2f}",
            })  # fmt: skip
    for policy, ratios in ahead.items():
        over_baselines[policy] |= {
            **_mean_and_worst("", ratios), "longer": "; ".join(beaten[policy]),
            "wide_mean": f"{fmean(found):.3f}" if (found := wide.get(policy)) else None,
        }  # fmt: skip
    return rows


def _mean_and_worst(prefix: str, ratios: Sequence[float]) -> dict[str, str]:
    found = {"mean": fmean(ratios), "worst": max(ratios)} if ratios else {}
    return {f"{prefix}{name}": f"{value:.3f}" for name, value in found.items()}


def with_errors(pool: Pool, over_baselines: dict[str, dict[str, object]]) -> Rows:
    """Part c; fills in the means over baselines that had the same wrong curves."""
    loss: list[float] = []
    against: dict[str, list[float]] = {name: [] for name in ("critical_path", "strategies", "mcpa", "lp_rounding")}
    for name in network_names():
        for cores in (16, 68):
            graph = network(name, pool, seed=SEED)
            if len(graph) > MOST_OPS:
                continue
            true = problem(graph, cores)
            known_s = plan(true, policy=SEARCH).makespan_s
            for seed in range(3):
                wrong = problem(perturbed(graph, 0.2, seed=seed), cores, error=0.2)
                made = plan(wrong, policy=SEARCH)
                found_s = simulate(PlanReplay(wrong, plan=made), true_curves=true.curves).makespan_s
                loss.append(found_s / known_s)
                for policy, ratios in against.items():
                    ratios.append(found_s / simulate(create(policy, wrong), true_curves=true.curves).makespan_s)
    print(
        f"curves off: {len(loss)} problems, over true curves mean {fmean(loss):.3f}, worst {max(loss):.3f}", flush=True
    )
    for policy, ratios in against.items():
        over_baselines[policy] |= _mean_and_worst("wrong_curves_", ratios)
    return list(over_baselines.values())


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
