"""Curves without samples: boosted trees over the static features of an op, a machine and a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Self

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import BatchModel
from threadcast.models.interpolation import forecast_table, with_known
from threadcast.models.intervals import PRIOR_OPS, read_log_bounds, residual_bounds
from threadcast.models.machine_limits import MachineLimits
from threadcast.models.measured import MeasuredOp, by_case, group, usable
from threadcast.models.op_features import OpFeatures
from threadcast.models.parallel import in_chunks
from threadcast.models.point_trees import Points, PointTrees, Shape

SCHEMA = "threadcast.static_regressor/3"


class StaticRegressor(BatchModel):
    """Boosted trees over `static_features` of all measured points, of all machines together; it proposes no samples.

    The interval is the central 90 % of out-of-fold residuals in log time of an op's kind, averaged with that of all
    kinds where few ops of the kind are known. An unknown kind has the widest interval of all kinds. At measured cases
    the measured times are returned; the forecast of other cases does not depend on them.
    """

    name = "static_xgboost"

    def __init__(self, *, trees: int = 300, depth: int = 8, rate: float = 0.06, seed: int = 0) -> None:
        self.shape = Shape(trees, depth, rate, seed)
        self._trees: PointTrees | None = None
        self._op_features = OpFeatures()
        self._bounds = (0.0, 0.0)
        """Bounds for an unknown kind."""
        self._of_kind: dict[str, tuple[float, float]] = {}

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all points; ModelError on unusable data."""
        entries = usable(group(measurements))[0]
        self._op_features = OpFeatures.learned(entries)
        entries = self._op_features.of_entries(entries)
        points = Points.of(entries, self._op_features.names)
        self._trees, residuals = points.learned(self.shape)
        self._of_kind = _bounds_by_kind(entries, [residuals[rows] for rows in points.of_op])
        lows, highs = zip(*self._of_kind.values(), strict=True)
        self._bounds = min(lows), max(highs)
        return self

    @property
    def least_s(self) -> float:
        """The seconds of a call, or the shortest that were learned."""
        return self._op_features.kinds.least_s

    def knows(self, op: Op) -> Source | None:
        """Whether an op is described as those that were learned; FeatureError where it lacks something."""
        return self._op_features.kinds.knows(op)

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError before `fit`."""
        if self._trees is None:
            raise ModelError(f"{self.name} has learned nothing yet: fit it first")
        self.check_batch(ops, observed)
        trees, ops = self._trees, self._op_features.translated(ops)
        logs = in_chunks(lambda some: trees.log_seconds(some, machine, cases), ops)
        bounds = np.array([self._of_kind.get(op.kind, self._bounds) for op in ops])
        seconds, low, high = np.exp(logs), np.exp(logs + bounds[:, :1]), np.exp(logs + bounds[:, 1:])
        return with_known(forecast_table(cases, seconds, low, high, self.name), list(map(by_case, observed)))

    def to_files(self) -> dict[str, bytes]:
        """Options and the trees."""
        document = {
            "schema": SCHEMA, "shape": asdict(self.shape), "log_bounds": list(self._bounds),
            "fitted": self._trees is not None,
            "log_bounds_of_kinds": {kind: list(bounds) for kind, bounds in self._of_kind.items()},
            "limits": self._trees.limits.to_json() if self._trees else MachineLimits().to_json(),
            "op_features": self._op_features.to_json(),
        }  # fmt: skip
        return {
            "model.json": json_bytes(document),
            **(self._trees.to_files("trees") if self._trees is not None else {}),
        }

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            loaded = StaticRegressor(**asdict(Shape(**member(document, "shape", dict))))
            loaded._bounds = read_log_bounds(member(document, "log_bounds", list))
            of_kind = member(document, "log_bounds_of_kinds", dict)
            loaded._of_kind = {str(kind): read_log_bounds(bounds) for kind, bounds in of_kind.items()}
            loaded._op_features = OpFeatures.from_json(document["op_features"])
            fitted = member(document, "fitted", bool)
            limits = MachineLimits.from_json(document["limits"])
        if fitted:
            names = loaded._op_features.names
            loaded._trees = PointTrees(loaded.shape, names, limits).from_files("trees", files)
        self.__dict__.update(loaded.__dict__)
        return self


def _bounds_by_kind(entries: Sequence[MeasuredOp], residuals: Sequence[Floats]) -> dict[str, tuple[float, float]]:
    """Bounds of each kind's residuals; where few ops of a kind are known, averaged with those of all kinds."""
    of_all = np.array(residual_bounds(np.concatenate(residuals)))
    rows: dict[str, list[int]] = {}
    for row, entry in enumerate(entries):
        rows.setdefault(entry.op.kind, []).append(row)
    found = {}
    for kind, own in rows.items():
        ops = len({entries[row].op.key for row in own})
        believed = ops / (ops + PRIOR_OPS)
        of_kind = np.array(residual_bounds(np.concatenate([residuals[row] for row in own])))
        low, high = (believed * of_kind + (1 - believed) * of_all).tolist()
        found[kind] = low, high
    return found
