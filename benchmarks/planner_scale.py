"""What planning large graphs for many cores takes, in a process of its own. Two minutes.

    python benchmarks/planner_scale.py [--sizes 500x16,5000x128] [--write]

Plans are those of `PlannerProcess.ask` with policy "auto" and the default budget. Seconds are wall-clock times from the
start of the process to the plan; memory is the process's peak of resident memory. Graphs and curves are simulated
(`planner_scale_graphs`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

from figures.planner import KEPT, QUICK, SCALE
from planner_scale_graphs import SHAPES, large_problem
from run_facts import RunFacts

from threadcast.core import Plan
from threadcast.runtime.engine.replay import arrange
from threadcast.runtime.plans.plan_store import packed
from threadcast.scheduler.compile_planner import compile_planner
from threadcast.scheduler.planner import BUDGET_S, QUICK_S, plan, plan_each
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.simulation.checker import check_schedule

SIZES = ((500, 16), (1_000, 32), (2_000, 64), (2_000, 128), (3_000, 128), (4_000, 96), (5_000, 64), (5_000, 128))
QUICK_SIZES = ((150, 2), (500, 16))
BASELINES = ("critical_path", "sequential")
LOADED_S = 5.0
"""Seconds that a process is given to load its libraries before it is asked."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(f"{ops}x{cores}" for ops, cores in SIZES))
    parser.add_argument("--write", action="store_true", help=f"{SCALE.writes}, with quick plans and what plans take")
    given = parser.parse_args()
    sizes = [(int(ops), int(cores)) for ops, cores in (size.split("x") for size in given.sizes.split(","))]
    compile_planner()  # once after an install; later processes load the machine code
    run, largest = RunFacts.now(), max(sizes)
    rows = [_scaled(shape, ops, cores) for ops, cores in sizes for shape in SHAPES]
    quick = [_quick(shape, ops, cores) for ops, cores in QUICK_SIZES for shape in SHAPES]
    kept = [_kept(shape, *largest) for shape in SHAPES]
    print(SCALE.printed(rows), QUICK.printed(quick), KEPT.printed(kept), sep="\n\n")
    if given.write:
        SCALE.store(rows, run, replaces=("ops", "cores"))
        QUICK.store(quick, run)
        KEPT.store(kept, run, replaces=("ops", "cores"))


def _scaled(shape: str, ops: int, cores: int) -> dict[str, object]:
    problem = large_problem(shape, ops, cores)
    seconds, cpu_s, peak_bytes, found = _planned(problem)
    return {
        "graph": shape, "ops": ops, "cores": cores, "cases": len(problem.curves.cases), "seconds": f"{seconds:.2f}",
        "cpu_s": f"{cpu_s:.2f}", "peak_mb": f"{peak_bytes / 1e6:.0f}", **_over_bound(problem, found),
    }  # fmt: skip


def _planned(problem: Problem) -> tuple[float, float, int, Plan]:
    """Wall-clock seconds, the process's CPU seconds and peak memory in bytes, and the plan."""
    started_s = time.perf_counter()
    with closing(PlannerProcess()) as process:
        process.ask(problem)
        found = process.result(600.0)
        seconds = time.perf_counter() - started_s
        cpu_s, peak_bytes = _cpu_s(process.pid), _peak_bytes(process.pid)
    assert found is not None
    check_schedule(problem.graph, found, machine=problem.machine)
    return seconds, cpu_s, peak_bytes, found


def _quick(shape: str, ops: int, cores: int) -> dict[str, object]:
    problem = large_problem(shape, ops, cores)
    took: list[str] = []
    plans: list[Plan] = []
    with closing(PlannerProcess()) as process:
        time.sleep(LOADED_S)
        for policy, budget_s in (("search", QUICK_S), ("auto", BUDGET_S)):
            started_s = time.perf_counter()
            process.ask(problem, policy=policy, options={"budget_s": budget_s})
            found = process.result(600.0)
            took.append(f"{time.perf_counter() - started_s:.2f}")
            assert found is not None
            plans.append(found)
    return {
        "graph": shape, "ops": ops, "cores": cores, "quick_s": took[0], "auto_s": took[1],
        "quick_plan": _ratio(plans[0]), **_over_bound(problem, plans[1]),
    }  # fmt: skip


def _kept(shape: str, ops: int, cores: int) -> dict[str, object]:
    problem = large_problem(shape, ops, cores)
    smaller = problem.machine.limited_to([core.id for core in problem.machine.cores][: cores // 2])
    whole = plan(problem, policy="search")
    fewer = plan(Problem(problem.graph, problem.curves, smaller), policy="search")
    tracemalloc.start()
    replay = arrange(whole, problem.graph)
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sizes = in_memory, *(len(json.dumps(each.to_json())) for each in (whole, fewer)), len(packed(fewer))
    names = ("in_memory_mb", "plan_mb", "half_mb", "compressed_mb")
    of_size = {name: f"{size / 1e6:.2f}" for name, size in zip(names, sizes, strict=True)}
    return {"graph": shape, "ops": ops, "cores": cores, "teams": len(replay.teams), **of_size}


def _over_bound(problem: Problem, found: Plan) -> dict[str, str]:
    every = found, *plan_each(problem, BASELINES)
    return {name: _ratio(each) for name, each in zip(("plan", *BASELINES), every, strict=True)}


def _ratio(found: Plan) -> str:
    return f"{found.makespan_s / found.lower_bound_s:.4f}"


def _peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
