"""The report that tells a user what runs the calls of one kind, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from threadcast.core import Plan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.candidate import DEFAULT, CandidateId, Kind
from threadcast.runtime.tuner.guard import Verdict

SHOWN = 8
"""Most kinds of calls, or comparisons, that a text names one by one, so that it has ten lines at most."""
MOST_CHARACTERS = 400
"""Most characters of a line."""
NOT_CALLED = "not called yet"
"""The reason of a report of what was never called."""
COMPILING = "the native engine is being compiled, once on this machine"
"""The reason of a report while no plan can run."""


@dataclass(slots=True, repr=False)
class Report:
    """What runs the steps of one kind of arguments, and why.

    `reason` is empty unless something was left out or waits: it says why only the default can run the calls, or which
    plan was refused and why, or that the engine is being compiled.
    """

    candidate: CandidateId | None = None
    """What runs the steps; None until all candidates have been compared."""
    reason: str = ""
    layout: MemoryFormat = MemoryFormat.AS_GIVEN
    """The memory format that `plan` is for."""
    fused: bool = False
    """Whether point-wise operators are fused in the plan's graph."""
    plan: Plan | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """For each candidate's name, the last verdict on it, against the best before it or against the default (`over`). In
    order of the first comparison, plans first."""
    predicted_s: dict[str, float] = field(default_factory=dict)
    """For each variant that was tried (memory format, fused or not), the seconds of a step that its plan predicts."""

    def __repr__(self) -> str:
        """Return the state in one line."""
        return f"Report({self.state})"

    def __str__(self) -> str:
        """Return the state, the plan and the comparisons, in ten lines at most."""
        said = [self.state]
        if self.plan is not None:
            said.append(f"plan: {len(self.plan.ops)} ops on {self.plan.cores} cores by {self.plan.policy}")
        if self.reason and self.reason not in said[0]:
            said.append(f"reason: {self.reason}")
        others = [f"compared: {name}, {verdict.against(verdict.over)}" for name, verdict in self.verdicts.items()]
        return "\n".join(in_brief([*said, *others], SHOWN, "comparisons"))

    @property
    def state(self) -> str:
        """What runs the calls, and by which gain or for which reason, in one line; while measuring nothing of both."""
        if self.candidate is None:
            return {NOT_CALLED: NOT_CALLED, COMPILING: f"measuring, {COMPILING}"}.get(self.reason, "measuring")
        if self.candidate == DEFAULT:
            if self.reason:
                return _line(f"default, {self.reason}")
            lost = [(v.gain, name) for name, v in self.verdicts.items() if v.kept == v.over == str(DEFAULT)]
            return f"default; {max(lost)[1]} was {self.verdicts[max(lost)[1]].against('it')}" if lost else "default"
        said, name = [self.runs], str(self.candidate)
        while len(said) <= len(self.verdicts) and (verdict := self.verdicts.get(name)) and verdict.kept == "plan":
            name = verdict.over
            said.append(verdict.against("PyTorch" if name == str(DEFAULT) else name))
        return ", ".join([*said[:2], *(f"which was {one}" for one in said[2:])])

    @property
    def runs(self) -> str:
        """What runs the steps: "measuring", "plan", "default", "eager, channels last" or a backend's name."""
        if self.candidate is None:
            return "measuring"
        return self.candidate.kind.value if self.candidate.kind is Kind.PLAN else str(self.candidate)

    @property
    def measuring(self) -> bool:
        """Whether it is still being measured what runs fastest."""
        return self.candidate is None

    @classmethod
    def as_default(cls, reason: str) -> Report:
        """Return the report of calls that only the default can run."""
        return cls(DEFAULT, reason)


class Reports(list[Report]):
    """Reports, one for each kind of calls; their text has ten lines at most."""

    def __repr__(self) -> str:
        texts = ",\n ".join(in_brief(map(repr, self), SHOWN, "kinds of calls"))
        return f"[{texts}]"


def in_brief(texts: Iterable[str], most: int, what: str) -> list[str]:
    """The first `most` of these texts, each in one line, and how many more of `what` there are."""
    lines = list(map(_line, texts))
    return [*lines[:most], *([f"and {len(lines) - most:,} more {what}"] if len(lines) > most else [])]


def _line(text: str) -> str:
    """A text in one line of at most `MOST_CHARACTERS`."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 4]} ..."
