"""A roofline from typical constants, for a machine that was not measured."""

from __future__ import annotations

import numpy as np

from threadcast.collector.calibration import Calibration
from threadcast.core import Machine, Op, Source
from threadcast.models.roofline import UNFITTED_BOUNDS, Roofline

CORE_HZ, FLOPS_PER_CYCLE = 2.5e9, 16.0
"""Clock of a core that does not report its own, and float32 operations per cycle: half of the most that AVX2 can do."""

CORE_BYTES_PER_S, CORES_TO_SATURATE = 1e10, 8
"""Memory bandwidth of one core in bytes a second, and how many cores use all the bandwidth of a memory node."""

CALL_S, THREAD_S = 5e-6, 5e-7
"""Seconds of a call of the framework, and of starting and joining each further thread."""

UNSURE = 4.0
"""Factor by which the interval is wider, both ways, than a calibrated roofline's. All of these are conventions: common
server cores lie within this factor of them."""


class NominalRoofline(Roofline):
    """The roofline of one machine, from the number of its cores, their clock and its memory nodes alone.

    It is the last resort, where neither a service nor a model can predict: its curves have the right shape, and roughly
    the right order of magnitude. Points are `extrapolated`, except measured ones.
    """

    _source = Source.EXTRAPOLATED

    def __init__(self, machine: Machine) -> None:
        super().__init__(calibrations=[nominal(machine)])
        low, high = UNFITTED_BOUNDS
        self._bounds = {machine.fingerprint: (low - float(np.log(UNSURE)), high + float(np.log(UNSURE)))}

    def knows(self, op: Op) -> Source:
        """`extrapolated` for each op: it always answers."""
        return self._source


def nominal(machine: Machine) -> Calibration:
    """The calibration of a machine that was not measured: typical constants, its clock and its memory nodes."""
    clocks = [core.max_hz or CORE_HZ for core in machine.cores]
    nodes: dict[int, int] = {}
    for core in machine.cores:
        nodes[core.node] = nodes.get(core.node, 0) + 1
    feeding = sum(min(cores, CORES_TO_SATURATE) for cores in nodes.values())
    cores = len(machine)
    return Calibration(
        machine.fingerprint, sum(clocks) / cores * FLOPS_PER_CYCLE, CORE_BYTES_PER_S, feeding * CORE_BYTES_PER_S,
        {1: CALL_S} if cores == 1 else {1: CALL_S, cores: CALL_S + THREAD_S * (cores - 1)},
    )  # fmt: skip
