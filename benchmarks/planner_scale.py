"""What planning large graphs for many cores takes, in a process of its own: `make bench-planner-scale`.

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
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from planner import table
from planner_scale_graphs import SHAPES, large_problem
from run_facts import RunFacts

from threadcast.core import Plan
from threadcast.runtime.engines.replay import arrange
from threadcast.runtime.plans.malleable_plan import counts_below
from threadcast.runtime.plans.plan_store import packed
from threadcast.scheduler.compile_planner import compile_planner
from threadcast.scheduler.planner import BUDGET_S, QUICK_S, plan, plan_each
from threadcast.scheduler.planner_process import PlannerProcess
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.simulation.checker import check_schedule

SIZES = ((500, 16), (1_000, 32), (2_000, 64), (2_000, 128), (3_000, 128), (4_000, 96), (5_000, 64), (5_000, 128))
QUICK_SIZES = ((150, 2), (500, 16))
BASELINES = ("critical_path", "sequential")
ASKED = "5 s and 500 MB"
"""What planning 5,000 ops for 128 cores may take."""
LOADED_S = 5.0
"""Seconds that a process is given to load its libraries before it is asked."""
PAGE = Path(__file__).parents[1] / "docs/planner-scale-tables.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(f"{ops}x{cores}" for ops, cores in SIZES))
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    given = parser.parse_args()
    sizes = [(int(ops), int(cores)) for ops, cores in (size.split("x") for size in given.sizes.split(","))]
    compile_planner()  # once after an install; later processes load the machine code
    lines = ["# What planning large graphs takes", ""]
    for line in _page(sizes):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        PAGE.write_text("\n".join(lines) + "\n")


def _page(sizes: Sequence[tuple[int, int]]) -> Iterator[str]:
    yield (
        f"`make bench-planner-scale`, {RunFacts.now()}. Graphs and curves are simulated. Columns with a policy's name "
        "hold its makespan over the lower bound."
    )
    yield ""
    yield "## From the start of the planner's process to the plan"
    yield ""
    yield (
        f'Policy "auto", {BUDGET_S:g} s of search, the compiled loops on disk. CPU seconds are those of the process; '
        "wall-clock seconds are more where other programs run."
    )
    yield ""
    rows: list[list[str]] = []
    largest = max(sizes)
    longest_s, most_bytes = 0.0, 0
    for ops, cores in sizes:
        for shape in SHAPES:
            problem = large_problem(shape, ops, cores)
            seconds, cpu_s, peak_bytes, found = _planned(problem)
            if (ops, cores) == largest:
                longest_s, most_bytes = max(longest_s, seconds), max(most_bytes, peak_bytes)
            rows.append(
                [shape, str(ops), str(cores), str(len(problem.curves.cases)), f"{seconds:.2f}", f"{cpu_s:.2f}",
                 f"{peak_bytes / 1e6:.0f}", *_over_bound(problem, found)]
            )  # fmt: skip
    columns = ("graph", "ops", "cores", "cases", "seconds", "CPU seconds", "peak MB", "plan", *BASELINES)
    yield from table(columns, rows)
    yield (
        f"For {largest[0]} ops on {largest[1]} cores the most was {longest_s:.1f} s and {most_bytes / 1e6:.0f} MB; "
        f"asked are at most {ASKED} for 5,000 ops on 128 cores."
    )
    yield ""
    yield "## From a question to its plan, once the process has loaded its libraries"
    yield ""
    yield f'"quick" is policy "search" with {QUICK_S:g} s of search.'
    yield ""
    quick = [_quick(shape, ops, cores) for ops, cores in QUICK_SIZES for shape in SHAPES]
    yield from table(("graph", "ops", "cores", "quick, s", "auto, s", "quick plan", "auto's", *BASELINES), quick)
    ops, cores = largest
    yield f"## What plans of {ops} ops on {cores} cores take once they are made"
    yield ""
    yield (
        f"An engine's order of ops and waits in memory; and, as JSON, a plan for all cores, one for {cores // 2} cores "
        f"and that as it is stored. An engine that can change cores has {len(counts_below(cores))} "
        "such plans."
    )
    yield ""
    yield from table(
        ("graph", "teams", "in memory, MB", "plan, MB", f"for {cores // 2} cores, MB", "compressed, MB"),
        [_kept(shape, ops, cores) for shape in SHAPES],
    )


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


def _quick(shape: str, ops: int, cores: int) -> list[str]:
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
    return [shape, str(ops), str(cores), *took, _ratio(plans[0]), *_over_bound(problem, plans[1])]


def _kept(shape: str, ops: int, cores: int) -> list[str]:
    problem = large_problem(shape, ops, cores)
    smaller = problem.machine.limited_to([core.id for core in problem.machine.cores][: cores // 2])
    whole = plan(problem, policy="search")
    fewer = plan(Problem(problem.graph, problem.curves, smaller), policy="search")
    tracemalloc.start()
    replay = arrange(whole, problem.graph)
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sizes = in_memory, *(len(json.dumps(each.to_json())) for each in (whole, fewer)), len(packed(fewer))
    return [shape, str(len(replay.teams)), *(f"{size / 1e6:.2f}" for size in sizes)]


def _over_bound(problem: Problem, found: Plan) -> list[str]:
    return [_ratio(each) for each in (found, *plan_each(problem, BASELINES))]


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
