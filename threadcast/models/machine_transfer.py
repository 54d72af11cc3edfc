"""How far forecasts are off on a machine that was not learned from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from threadcast.core.curve import Floats
from threadcast.core.json_reading import finite

ASSUMED_LEVEL, ASSUMED_SHAPE, ASSUMED_MACHINES = float(np.log(2.0)) ** 2, float(np.log(1.3)) ** 2, 1.0
"""Assumed variances of levels, a factor of 2, and of shapes, a factor of 1.3, and in how many machines the assumption
about a machine's level is believed."""

_LEAST = 1e-5


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
