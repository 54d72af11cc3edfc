"""Compiles all loops of the planner before they are needed; the machine code stays on disk for later processes.

`planner.plan` does it before its time budget begins, and `threadcast serve` at its start. To do it when a machine or a
container image is set up, run `threadcast compile` or `python -m threadcast.scheduler.compile_planner`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path

from threadcast.core import Machine, Op, OpGraph
from threadcast.core.graph import Edge
from threadcast.core.parent_process import end_with_parent
from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.graph_curves import curves_of


@cache
def compile_planner() -> None:
    """Call each compiled loop once on a tiny problem, which compiles it or loads its machine code from disk.

    Further calls in a process do nothing, as do calls where numba is not installed. Afterwards `is_compiled` knows.
    """
    from threadcast.scheduler.kernels.compiled import COMPILED

    if not COMPILED:
        return
    _compile()
    with suppress(OSError):  # where no file can be written, no machine code is kept either
        _stamp().touch()


def is_compiled() -> bool:
    """Return whether `compile_planner` has run to its end on this machine: then loading the loops takes about 1.5 s."""
    try:
        return _stamp().is_file()
    except PackageNotFoundError:
        return False


def _stamp() -> Path:
    """The file that tells that all loops are compiled: for these sources, this Python, numba and processor.

    It lies beside the machine code, and goes with it. PackageNotFoundError where numba is not installed.
    """
    kernels = Path(__file__).with_name("kernels")
    digest = hashlib.sha256(f"{sys.version} {version('numba')} {version('llvmlite')} {_processor()}".encode())
    for path in sorted(kernels.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or kernels / "__pycache__")
    return folder / f"planner-{digest.hexdigest()[:16]}.compiled"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "CPU part")):
                return line
    return ""


def _compile() -> None:
    from threadcast.scheduler.kernels.instance import Instance
    from threadcast.scheduler.policies.cpa import Cpa
    from threadcast.scheduler.search.core_layout import CoreLayout
    from threadcast.scheduler.search.search import Search

    problem = _tiny_problem()
    instance = Instance.of(problem)
    Cpa(problem)
    solution = Search(instance, bound_s=0.0).run()[0]
    layout = CoreLayout(problem)
    sequence = layout.sequence(solution.start.tolist(), instance.positions(solution.choice))
    layout.placements(layout.annealed(sequence, seed=0, enough_s=0.0, deadline_s=1.0, clock=count().__next__))


def _tiny_problem() -> Problem:
    curves = {name: {1: 1.0, 2: 0.6} for name in "abc"}
    graph = OpGraph(tuple(curves), (Op("mm"),) * 3, (Edge(0, 2), Edge(1, 2)), curves)
    machine = Machine.uniform("some", 2)
    return Problem(graph, curves_of(graph, machine), machine)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # for a service: its process id, and this process's nice value
        _parent, _nice = map(int, sys.argv[1:])
        end_with_parent(_parent)
        os.nice(_nice)
    compile_planner()
