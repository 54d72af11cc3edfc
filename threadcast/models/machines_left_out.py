"""How far forecasts are off on a machine that the trees have not learned from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from threadcast.core.curve import Floats
from threadcast.models.machine_limits import MachineLimits
from threadcast.models.measured import MeasuredOp, rows_by_machine
from threadcast.models.point_trees import Points, PointTrees, Shape

LEAST_OPS = 4
"""Fewest ops of a machine that tell how far forecasts are off there."""


def machines_left_out(entries: Sequence[MeasuredOp], points: Points, shape: Shape, *, jobs: int) -> Iterator[Floats]:
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
            without[family] = points.trees(shape, others, jobs=jobs)
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
