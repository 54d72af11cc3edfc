"""What runs the calls of one kind, and why: what a user reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadcast.core import Plan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind
from threadcast.runtime.tuning.guard import Verdict


@dataclass(slots=True)
class Report:
    """What runs the steps of one kind of arguments, and why.

    Where nothing could be compared `reason` says why.
    """

    contender: ContenderId | None = None
    """What runs the steps; None until all contenders have been compared."""
    reason: str = ""
    layout: MemoryFormat = MemoryFormat.AS_GIVEN
    """The memory format of the plan."""
    fused: bool = False
    """Whether point-wise operators are fused in the plan's graph."""
    plan: Plan | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Of each contender, in the order in which they came, against the best before it; plans come first."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """The plan's makespan in each memory format that was tried, and in the best with fused operators."""

    @property
    def runs(self) -> str:
        """What runs the steps: "measuring", "plan", "default", "eager, channels last" or the name of a backend."""
        if self.contender is None:
            return "measuring"
        return self.contender.kind.value if self.contender.kind is Kind.PLAN else str(self.contender)

    @property
    def measuring(self) -> bool:
        """Whether it is not known yet what runs fastest."""
        return self.contender is None

    @classmethod
    def as_default(cls, reason: str) -> Report:
        """The report of calls that only the default can run."""
        return cls(DEFAULT, reason)
