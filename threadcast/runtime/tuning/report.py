"""The report that tells a user what runs the calls of one kind, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from threadcast.core import Plan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender_id import DEFAULT, ContenderId, Kind
from threadcast.runtime.tuning.guard import Verdict
from threadcast.runtime.tuning.warm_up import WarmUp


@dataclass(slots=True)
class Report:
    """What runs the steps of one kind of arguments, and why.

    `reason` is empty unless something was left out: it says why only the default can run the calls, or which plan was
    refused and why.
    """

    contender: ContenderId | None = None
    """What runs the steps; None until all contenders have been compared."""
    reason: str = ""
    layout: MemoryFormat = MemoryFormat.AS_GIVEN
    """The memory format that `plan` is for."""
    fused: bool = False
    """Whether point-wise operators are fused in the plan's graph."""
    plan: Plan | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """For each contender's name, the verdict on it against the best before it, or against the default where it was
    compared once more. In order of the first comparison, plans first."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """For each variant that was tried (memory format, fused or not), the seconds of a step that its plan predicts."""
    warm_up: WarmUp = field(default_factory=WarmUp)
    """What learning has cost so far: calls, seconds, seconds lost and gained, and the call that broke even."""

    @property
    def runs(self) -> str:
        """What runs the steps: "measuring", "plan", "default", "eager, channels last" or a backend's name."""
        if self.contender is None:
            return "measuring"
        return self.contender.kind.value if self.contender.kind is Kind.PLAN else str(self.contender)

    @property
    def measuring(self) -> bool:
        """Whether it is still being measured what runs fastest."""
        return self.contender is None

    @classmethod
    def as_default(cls, reason: str) -> Report:
        """Return the report of calls that only the default can run."""
        return cls(DEFAULT, reason)
