"""The model for a machine that nobody trained one for: the shipped prior, and what was measured on the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from threadcast.core import Machine, Measurement
from threadcast.core.errors import ModelError
from threadcast.core.fork_lock import ForkLock
from threadcast.models.joint_conditioning import KnownOps
from threadcast.models.joint_process import JointProcess

VERSION = "joint_process (shipped prior and store)"
"""Name of its forecasts where it stands in for a registered model, or where there is none."""


class UntrainedModel(JointProcess):
    """A joint process with the shipped prior, which learns from `known()`, measurements of the machine, once an op is
    asked for that was not measured in every case."""

    def __init__(self, known: Callable[[], Sequence[Measurement]]) -> None:
        super().__init__(prior=True)
        self._unread: Callable[[], Sequence[Measurement]] | None = known
        self._reading = ForkLock()

    def adapts_to(self, machine: Machine) -> bool:
        """False: it asks by itself for what is known."""
        return False

    def _known(self, machine: Machine) -> KnownOps:
        with self._reading:
            if self._unread is not None:
                with suppress(ModelError):  # too few measurements
                    self.fit(self._unread())
                self._unread = None
        return super()._known(machine)
