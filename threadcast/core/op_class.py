"""What an op is bound by: arithmetic, memory, or the cost of being called at all."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from threadcast.core.errors import InvalidInput
from threadcast.core.json_reading import number
from threadcast.core.op import Op

TINY_CALLS = 4.0
"""An op is tiny if its work takes less time than this number of calls. A fifth or more of its time is then overhead,
and bandwidth does not decide how much it slows others down or is slowed down by them. A convention."""


class OpClass(StrEnum):
    """What most of an op's time is spent on."""

    MEMORY = "memory"
    """Moving bytes: fewer flops per byte than the machine's ridge (`ClassLimits.ridge`)."""
    COMPUTE = "compute"
    """Arithmetic: at least as many flops per byte as the machine's ridge."""
    TINY = "tiny"
    """The call itself."""


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """The speed of one core of a machine while all other cores work too; a calibration measures it.

    `core_flops_per_s` and `core_bytes_per_s` are per second; the latter is an equal part of the bandwidth that all
    cores have together, as classes are for ops beside others, not for ops alone. `call_s` is the time in seconds of a
    call that has next to nothing to do.
    """

    core_flops_per_s: float
    core_bytes_per_s: float
    call_s: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf or (value == 0 and name != "call_s"):
                raise InvalidInput(f"{name}={value!r} must be finite and above 0 (call_s: at least 0)")

    @property
    def ridge(self) -> float:
        """Flops per byte above which an op's arithmetic takes longer than its memory traffic (Williams et al. 2009)."""
        return self.core_flops_per_s / self.core_bytes_per_s

    def work_s(self, op: Op) -> float:
        """Least seconds that the work of `op` takes on one core; 0 for views."""
        return max(op.flops / self.core_flops_per_s, op.bytes_moved / self.core_bytes_per_s)

    def class_of(self, op: Op) -> OpClass:
        """The class of `op`, by the time that its work takes on one core."""
        work_s = self.work_s(op)
        if not work_s or work_s < TINY_CALLS * self.call_s:
            return OpClass.TINY
        return OpClass.COMPUTE if op.flops >= self.ridge * op.bytes_moved else OpClass.MEMORY

    def to_json(self) -> dict[str, Any]:
        """The three limits by name, as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any, *, pointer: str = "") -> Self:
        """Read what `to_json` writes; FormatError or InvalidInput on anything else."""
        names = ("core_flops_per_s", "core_bytes_per_s", "call_s")
        return cls(*(number(document, name, pointer=pointer) for name in names))
