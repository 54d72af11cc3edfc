"""How far forecasts are off on a machine that was not learned from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.json_reading import finite
from threadcast.models.machine_limits import MachineLimits
from threadcast.models.measured import MeasuredOp, rows_by_machine
from threadcast.models.point_trees import Points, PointTrees, Shape

ASSUMED_LEVEL, ASSUMED_SHAPE, ASSUMED_MACHINES = float(np.log(2.0)) ** 2, float(np.log(1.3)) ** 2, 1.0
"""Assumed variances of levels, a factor of 2, and of shapes, a factor of 1.3, and in how many machines the assumption
about a machine's level is believed."""

_LEAST = 1e-5

LEAST_OPS = 4
"""Fewest ops of a machine that tell how far forecasts are off there."""


@dataclass(frozen=True, slots=True)
class MachineTransfer:
    """Variances of the errors of log forecasts on a machine that was not learned from: of the `level` that all its ops
    share, of the level of each op (`op_level`), and of the shape of its curve (`op_shape`)."""

    level: float = ASSUMED_LEVEL
    op_level: float = ASSUMED_LEVEL
    op_shape: float = ASSUMED_SHAPE

    @classmethod
    def learned(cls, machines: Iterable[Floats]) -> MachineTransfer:
        """From the errors on machines that were left out: for each (n_ops, n_cases), NaN where nothing was measured."""
        found = []
        for errors in machines:
            if errors.shape[0] < 2:
                continue
            shared = np.nanmean(errors, axis=0)
            own = errors - shared
            levels = np.nanmean(own, axis=1, keepdims=True)
            found.append([np.nanmean(shared) ** 2, np.var(levels), np.nanmean((own - levels) ** 2)])
        if not found:
            return cls()
        parts = np.array(found)
        level = (parts[:, 0].sum() + ASSUMED_MACHINES * ASSUMED_LEVEL) / (len(parts) + ASSUMED_MACHINES)
        values = [max(float(value), _LEAST) for value in (level, *parts[:, 1:].mean(axis=0))]
        return cls(values[0], values[1], values[2])

    def to_json(self) -> list[float]:
        """The three numbers."""
        return [self.level, self.op_level, self.op_shape]

    @classmethod
    def from_json(cls, document: Any) -> MachineTransfer:
        """Read what `to_json` returned; ValueError where these cannot be variances."""
        values = [finite(value, pointer="/transfer") for value in document]
        if len(values) != 3 or min(values) <= 0:
            raise ValueError("a transfer is three numbers above 0")
        return cls(*values)


def machines_left_out(entries: Sequence[MeasuredOp], points: Points, shape: Shape) -> Iterator[Floats]:
    """For each machine: errors (n_ops, n_cases) of log forecasts by trees that know the other machines only, NaN where
    nothing was measured.

    `points` are those of `entries`. Machines of one family (condition `family` of their measurements) are left out
    together, so that errors are those of a machine that is unlike all others. Nothing for a single machine or family.
    """
    families = [_family(entry) for entry in entries]
    without: dict[str, PointTrees] = {}
    for family in dict.fromkeys(families):
        others = np.ones(len(points.targets), dtype=bool)
        for rows, own in zip(points.of_op, families, strict=True):
            others[rows] = own != family
        if others.any():
            without[family] = points.trees(shape, others)
    for ops in rows_by_machine(entries).values():
        trees = without.get(families[ops[0]])
        if trees is not None and len(ops) >= LEAST_OPS:
            yield _errors([entries[op] for op in ops], [points.of_op[op] for op in ops], points, trees)


def _errors(own: Sequence[MeasuredOp], of_op: Sequence[slice], points: Points, trees: PointTrees) -> Floats:
    cases = tuple(sorted({case for entry in own for case in entry.by_case}))
    position = {case: i for i, case in enumerate(cases)}
    errors = np.full((len(own), len(cases)), np.nan)
    for at, (entry, rows) in enumerate(zip(own, of_op, strict=True)):
        known = tuple(entry.by_case)
        logs = points.targets[rows] + points.rooflines[rows]
        roofline = MachineLimits().log_seconds([entry.op], entry.machine, known)[0]  # of an unknown machine
        errors[at, [position[case] for case in known]] = logs - trees.grown.forecast(points.features[rows]) - roofline
    return errors


def _family(entry: MeasuredOp) -> str:
    conditions = next(iter(entry.by_case.values())).conditions
    return str(conditions.get("family", entry.machine.fingerprint))
