"""Planning in a process of its own: the caller's steps go on meanwhile, and its memory stays free of the planner's.

The planner's libraries (Numba's compiler, HiGHS, OR-Tools) take some 250 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import IO, Any

from threadcast.core import Machine, OpGraph, Plan
from threadcast.core.curve_codec import from_codes, to_codes
from threadcast.core.errors import ExecutionError
from threadcast.core.parent_process import end_with_parent
from threadcast.scheduler.policies import Problem

_ENDING_S = 5.0
"""Longest wait for a process that was told to end."""


class Planning:
    """A plan being made for `problem`; `close` ends the process that makes it, if it still does.

    In the `background` it takes only what nobody else wants of the cores.
    """

    def __init__(self, problem: Problem, *, background: bool = False) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open until `close`
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile("w+") as task:
            json.dump(_written(problem), task)
            task.seek(0)
            self._running = subprocess.Popen(
                [sys.executable, "-m", __name__, *(["background"] if background else [])],
                stdin=task,
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the caller
            )

    @property
    def process(self) -> int:
        """The id of the process."""
        return self._running.pid

    def result(self) -> Plan | None:
        """The plan, or None as long as it is being made; ExecutionError where it failed."""
        if self._running.poll() is None:
            return None
        self._errors.seek(0)
        if self._running.returncode != 0:
            reason = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
            raise ExecutionError(f"planning failed: {' '.join(reason) or self._running.returncode}")
        self._output.seek(0)
        return Plan.from_json(json.loads(self._output.read()))

    def close(self) -> None:
        """End the process; closing again does nothing."""
        if self._running.poll() is None:
            self._running.kill()
            self._running.wait(_ENDING_S)
        self._output.close()
        self._errors.close()


def _written(problem: Problem) -> dict[str, Any]:
    return {
        "graph": problem.graph.to_json(),
        "machine": problem.machine.to_json(),
        "curves": to_codes(problem.curves),
    }


def _read(document: dict[str, Any]) -> Problem:
    curves = from_codes(document["curves"])
    return Problem(OpGraph.from_json(document["graph"]), curves, Machine.from_json(document["machine"]))


def _main() -> None:
    end_with_parent()  # which waits for the plan
    if "background" in sys.argv:
        os.nice(19)
    from threadcast.scheduler.planner import plan

    json.dump(plan(_read(json.load(sys.stdin))).to_json(), sys.stdout)


if __name__ == "__main__":
    _main()
