"""The model for a machine that nobody trained one for: the shipped prior, and what was measured on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Self

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.models.base import BatchModel
from threadcast.models.choosing import Outlook
from threadcast.models.joint_process import FEW_OPS, JointProcess
from threadcast.models.measured import by_case

VERSION = "joint_process (shipped prior and store)"
"""Name of its forecasts where it stands in for a registered model, or where there is none."""


class UntrainedModel(BatchModel):
    """Forecasts by a `JointProcess` that learns from `known()`, measurements of the machine, as soon as an op is asked
    for that was not measured in every case. Ops that were not measured at all are forecast with the shipped prior; all
    are, as long as fewer than `FEW_OPS` were measured on the machine."""

    name = "joint_process"

    def __init__(self, known: Callable[[], Sequence[Measurement]]) -> None:
        self._known, self._lock = known, Lock()
        self._by_prior: dict[bool, JointProcess] = {}
        self._measured: Sequence[Measurement] | None = None

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where an op cannot be forecast."""
        self.check_batch(ops, observed)
        known = [by_case(measured) for measured in observed]
        if all(case in measured_at for measured_at in known for case in cases):
            return JointProcess().predict_many(ops, observed, cases, machine=machine)
        return CurveTable.of_parts(
            (rows, process.predict_many([ops[i] for i in rows], [observed[i] for i in rows], cases, machine=machine))
            for process, rows in self._parts(observed)
        )

    def outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine, *, widened: float = 1.0
    ) -> list[Outlook]:
        """What choosing among the machine's cases may cost each op, and which case to measure next."""
        found: dict[int, Outlook] = {}
        for process, rows in self._parts(observed):
            some = [ops[i] for i in rows], [observed[i] for i in rows]
            found.update(zip(rows, process.outlooks(*some, machine, widened=widened), strict=True))
        return [found[i] for i in range(len(ops))]

    def _parts(self, observed: Sequence[Sequence[Measurement]]) -> Iterator[tuple[JointProcess, list[int]]]:
        """The processes that forecast, and the positions of the ops that each of them does."""
        few = self._few()
        measured = [i for i, of_op in enumerate(observed) if of_op and not few]
        others = [i for i, of_op in enumerate(observed) if few or not of_op]
        for rows, prior in ((measured, False), (others, True)):
            if rows:
                yield self._learned(prior), rows

    def _few(self) -> bool:
        with self._lock:
            if self._measured is None:
                self._measured = self._known()
        return len({m.op.key for m in self._measured}) < FEW_OPS

    def _learned(self, prior: bool) -> JointProcess:
        with self._lock:
            if prior not in self._by_prior:
                process = JointProcess(prior=prior)
                with suppress(ModelError):  # too few measurements
                    process.fit(self._measured or [])
                self._by_prior[prior] = process
            return self._by_prior[prior]

    def to_files(self) -> dict[str, bytes]:
        """ArtefactError: what is registered is trained, or the prior alone (`threadcast models add-prior`)."""
        raise ArtefactError("an untrained model is not stored: train one, or register the prior")

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """ArtefactError, as no files are of an untrained model."""
        raise ArtefactError("no files are of an untrained model")
