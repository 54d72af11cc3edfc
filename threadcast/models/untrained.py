"""The model for a machine that nobody trained one for: the shipped prior, and what was measured on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Self

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ArtefactError, ModelError
from threadcast.models.base import BatchModel
from threadcast.models.choosing import Outlook
from threadcast.models.joint_process import JointProcess
from threadcast.models.measured import by_case

VERSION = "joint_process (shipped prior and store)"
"""Name of its forecasts where it stands in for a registered model, or where there is none."""


class UntrainedModel(BatchModel):
    """Forecasts by a `JointProcess` with the prior for unmeasured ops, which learns from `known()`, measurements of the
    machine, as soon as an op is asked for that was not measured in every case."""

    name = "joint_process"

    def __init__(self, known: Callable[[], Sequence[Measurement]]) -> None:
        self._known, self._lock = known, Lock()
        self._process: JointProcess | None = None

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where an op cannot be forecast."""
        self.check_batch(ops, observed)
        known = [by_case(measured) for measured in observed]
        needed = not all(case in measured_at for measured_at in known for case in cases)
        process = self._learned() if needed else JointProcess()
        return process.predict_many(ops, observed, cases, machine=machine)

    def outlooks(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], machine: Machine, *, widened: float = 1.0
    ) -> list[Outlook]:
        """What choosing among the machine's cases may cost each op, and which case to measure next."""
        found: dict[int, Outlook] = {}
        for process, rows in self._learned().parts(observed, machine):
            some = [ops[i] for i in rows], [observed[i] for i in rows]
            found.update(zip(rows, process.outlooks(*some, machine, widened=widened), strict=True))
        return [found[i] for i in range(len(ops))]

    def _learned(self) -> JointProcess:
        with self._lock:
            if self._process is None:
                self._process = JointProcess(prior="unmeasured")
                with suppress(ModelError):  # too few measurements
                    self._process.fit(self._known())
            return self._process

    def to_files(self) -> dict[str, bytes]:
        """ArtefactError: what is registered is trained, or the prior alone (`threadcast models add-prior`)."""
        raise ArtefactError("an untrained model is not stored: train one, or register the prior")

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """ArtefactError, as no files are of an untrained model."""
        raise ArtefactError("no files are of an untrained model")
