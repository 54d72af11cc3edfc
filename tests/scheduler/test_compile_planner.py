"""All loops of the planner are compiled before a plan's time budget begins, and no plan compiles more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from threadcast.scheduler.compile_planner import compile_planner, is_compiled

PROGRAM = """
from importlib import import_module
from pathlib import Path
from dataclasses import replace
from numba.core.dispatcher import Dispatcher
from tests.scheduler.affinities import with_affinities
from tests.scheduler.random_problems import problem_of
from threadcast.scheduler import kernels
from threadcast.scheduler.compile_planner import compile_planner
from threadcast.scheduler.planner import plan
from threadcast.scheduler.policies import Problem
from threadcast.scheduler.search import search, shortest

names = [path.stem for path in Path(kernels.__file__).parent.glob("*.py")]
files = [import_module(f"{kernels.__name__}.{name}") for name in names]
loops = {found.__name__: found for file in files for found in vars(file).values() if isinstance(found, Dispatcher)}
assert not any(loop.signatures for loop in loops.values())
compile_planner()
before = {name: loop.signatures for name, loop in loops.items()}
assert all(before.values()), f"not compiled: {[name for name, known in before.items() if not known]}"

curves = [{1: 1.0 + i / 7, 2: 0.6 + i / 9, 4: 0.4 + i / 8} for i in range(12)]
edges = [(i, i + 3) for i in range(9)]
grouped = with_affinities(problem_of(curves, edges, cores=4, group_size=2), seed=1)
plan(grouped, budget_s=0.5)
plan(problem_of(curves, edges, cores=3), budget_s=0.5)
uncertain = problem_of(curves, edges)
table = uncertain.curves
uncertain = Problem(uncertain.graph, replace(table, low=table.seconds / 2, high=table.seconds * 2), uncertain.machine)
plan(uncertain, budget_s=0.5)
search.ANNEALED_OPS = shortest.ANNEALED_OPS = 10
plan(grouped, budget_s=0.5)
after = {name: loop.signatures for name, loop in loops.items()}
assert after == before, {name: known for name, known in after.items() if known != before[name]}
"""


@pytest.mark.system
def test_it_is_known_whether_the_loops_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not is_compiled()
    subprocess.run([sys.executable, "-m", compile_planner.__module__], check=True)
    assert is_compiled()
    monkeypatch.setattr("sys.version", "another Python")
    assert not is_compiled()


def test_no_plan_compiles_more() -> None:
    pytest.importorskip("numba")
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
