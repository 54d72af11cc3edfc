"""The model for a machine that nobody trained one for: the shipped prior, and what was measured on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Self

from threadcast.core import Case, CurveTable, Machine, Measurement, Op
from threadcast.core.errors import ModelError
from threadcast.models.base import BatchModel
from threadcast.models.joint_process import JointProcess
from threadcast.models.measured import by_case


class UntrainedModel(BatchModel):
    """Ops that were measured in every case have their measured curves. As soon as another op is asked for, a
    `JointProcess` with the shipped prior learns from `known()`, measurements of the machine, and forecasts it."""

    name = "joint_process"

    def __init__(self, known: Callable[[], Sequence[Measurement]]) -> None:
        self._known, self._lock = known, Lock()
        self._process: JointProcess | None = None

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The curves of many ops, one row each; ModelError where an op cannot be forecast."""
        self.check_batch(ops, observed)
        complete = all(case in measured_at for measured_at in map(by_case, observed) for case in cases)
        process = JointProcess(prior=False) if complete else self._learned()
        return process.predict_many(ops, observed, cases, machine=machine)

    def _learned(self) -> JointProcess:
        with self._lock:
            if self._process is None:
                process = JointProcess()
                with suppress(ModelError):  # too few measurements: the prior alone
                    process.fit(self._known())
                self._process = process
            return self._process

    def to_files(self) -> dict[str, bytes]:
        """The files of the joint process."""
        return self._learned().to_files()

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError for anything else."""
        self._process = JointProcess().from_files(files)
        return self
