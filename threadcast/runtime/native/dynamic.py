"""Decides while it runs: symmetric executors take ready ops by level, the longest path to the end first.

Source: Graphi (Tang et al. 2018, sections 4 and 5): the critical-path-first order, and the light executor, which here
is whoever made a tiny op ready. A plan knows more beforehand; this one adapts when ops take other times than foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from threadcast.capture.capture import Captured
from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.runtime.native.engine import SPIN_S, NativeStepper
from threadcast.runtime.native.lowering import Values
from threadcast.runtime.replay import Team, seats_of
from threadcast.scheduler.problem.levels import levels

TINY_S = 2e-6
"""Seconds up to which an op is run by whoever made it ready: handing it to another core takes about half as long."""


class DynamicEngine(NativeStepper):
    """Runs the steps of `captured` on `executors` teams of as many cores each, without a plan.

    `seconds` are what each op takes on such a team, in the graph's order: they decide who goes first, and need not be
    exact. Teams take neighbouring cores; those that are left over stay idle. InvalidInput for no or too many executors,
    or other than one time an op; ExecutionError as of `NativeEngine`.
    """

    def __init__(self, captured: Captured, seconds: Sequence[float], machine: Machine, *, executors: int) -> None:
        if not 1 <= executors <= len(machine):
            raise InvalidInput(f"executors={executors}: from 1 to {len(machine)}, one a core, are possible")
        if len(seconds) != len(captured.graph):
            raise InvalidInput(f"{len(seconds)} times for {len(captured.graph)} ops: there must be one an op")
        each = len(machine) // executors
        cores = [core for group in machine.groups for core in group]
        self._teams = [Team(tuple(cores[i * each : (i + 1) * each]), each) for i in range(executors)]
        seats = [seats_of(team, machine) for team in self._teams]
        order = sorted(seat for team in seats for seat in team)  # the calling thread takes the first
        number = {seat: lane for lane, seat in enumerate(order)}
        groups = [[number[seat] for seat in team] for team in seats]
        self._of_lane = {lanes[0]: team for lanes, team in zip(groups, self._teams, strict=True)}

        def make(native: ModuleType, program: Any, lanes: Any, values: Values) -> Any:
            taken_s = np.asarray(seconds)
            urgency = levels(captured.graph, taken_s).tolist()
            made = native.Order(seats=order, groups=groups, levels=urgency, tiny=(taken_s <= TINY_S).tolist())
            return native.DynamicEngine(program, lanes, made, SPIN_S)

        super().__init__(captured, len(machine), f"dynamic, {executors} x {each}", make)

    def _team(self, op: int, lane: int, engine: int) -> Team:
        return self._of_lane[lane]
