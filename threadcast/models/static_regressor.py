"""Curves without a sample: boosted trees over what is known of an op, a machine and a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Self

import numpy as np

from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.core.json_reading import check_schema, finite, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import BatchModel
from threadcast.models.interpolation import measured_knots, with_measured
from threadcast.models.intervals import residual_bounds, widths_by_kind
from threadcast.models.measured import group, usable
from threadcast.models.parallel import in_chunks
from threadcast.models.point_trees import Library, Points, PointTrees, Shape

SCHEMA = "threadcast.static_regressor/1"


class StaticRegressor(BatchModel):
    """Trees over `static_features` of all measured points, of all machines together; it asks for no sample.

    The interval is the central 90 % of out-of-fold residuals in log time, as wide as those of an op's kind have to be;
    an unknown kind's is that of the widest known one. What was measured of an op is not used, but shown where it was
    measured.
    """

    searched = Shape.searched

    def __init__(
        self, library: Library, *, trees: int = 300, depth: int = 8, rate: float = 0.06, seed: int = 0, jobs: int = 1
    ) -> None:
        self.library: Library = library
        self.name = f"static_{library}"
        self.shape, self.jobs = Shape(trees, depth, rate, seed), jobs
        self._trees: PointTrees | None = None
        self._features = 0
        self._bounds = (0.0, 0.0)
        self._widths: dict[str, float] = {}
        """By kind, how many times as far off its ops are as `_bounds` say."""

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Learn from all points; ModelError on unusable data."""
        entries = usable(group(measurements))[0]
        points = Points.of(entries)
        self._trees, residuals = points.learned(self.library, self.shape, jobs=self.jobs)
        self._features = points.features.shape[1]
        by_op = [residuals[rows] for rows in points.of_op]
        kinds = [entry.op.kind for entry in entries]
        self._widths = widths_by_kind(kinds, by_op)
        told = [own / self._widths[kind] for kind, own in zip(kinds, by_op, strict=True)]
        self._bounds = residual_bounds(np.concatenate(told))
        return self

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """As `predict`, the trees asked once."""
        if self._trees is None:
            raise ModelError(f"{self.name} has learned nothing yet: fit it first")
        self.check_batch(ops, observed)
        trees = self._trees
        logs = in_chunks(lambda some: trees.log_seconds(some, machine, cases), ops, jobs=1)
        widest = max(self._widths.values(), default=1.0)
        widths = np.array([[self._widths.get(op.kind, widest)] for op in ops])
        seconds, low, high = (np.exp(logs + widths * by) for by in (0.0, *self._bounds))
        table = CurveTable(
            tuple(cases), seconds, low, high,
            np.full(seconds.shape, list(Source).index(Source.LEARNED), dtype=np.int8), self.name,
        )  # fmt: skip
        return with_measured(table, map(measured_knots, observed))

    def to_files(self) -> dict[str, bytes]:
        """Options and the trees."""
        document = {
            "schema": SCHEMA, "library": self.library, "shape": asdict(self.shape), "features": self._features,
            "log_bounds": list(self._bounds), "fitted": self._trees is not None,
            "widths": self._widths,
        }  # fmt: skip
        return {
            "model.json": json_bytes(document),
            **(self._trees.to_files("trees") if self._trees is not None else {}),
        }

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Take over what `to_files` gave for the same library."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            if document["library"] != self.library:
                raise ArtefactError(f"model.json is of {document['library']!r}, not of {self.library!r}")
            made = StaticRegressor(self.library, jobs=self.jobs, **asdict(Shape(**member(document, "shape", dict))))
            low, high = (finite(bound, pointer="/log_bounds") for bound in member(document, "log_bounds", list))
            if low > 0 or high < 0:
                raise ArtefactError(f"model.json has an interval that does not enclose its forecast: {low}, {high}")
            widths = member(document, "widths", dict, default={})  # models of before there were widths have none
            made._widths = {str(kind): finite(width, pointer="/widths") for kind, width in widths.items()}
            if min(made._widths.values(), default=1.0) <= 0:
                raise ArtefactError("model.json has widths that are not above 0")
            made._features, made._bounds = member(document, "features", int), (low, high)
            fitted = member(document, "fitted", bool)
        if fitted:
            made._trees = PointTrees(self.library, made.shape).from_files("trees", files, features=made._features)
        self.__dict__.update(made.__dict__)
        return self
