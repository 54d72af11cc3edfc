"""The outputs of `TuningMachine`: runners, which run the next step, and instructions, to carry out before it."""

from __future__ import annotations

from dataclasses import dataclass

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender_id import ContenderId
from threadcast.runtime.tuning.guard import Verdict
from threadcast.runtime.tuning.plan_search import Look, Meanwhile, Try


@dataclass(frozen=True, slots=True)
class SearchStep:
    """The next step is a step of the search for a plan of `variant`."""

    variant: Variant
    step: Look | Try | Meanwhile


@dataclass(frozen=True, slots=True)
class ContenderStep:
    """A contender runs the next step. With `rest` the idle thread teams of all engines must end first."""

    contender: ContenderId
    rest: bool = False


Runner = SearchStep | ContenderStep


@dataclass(frozen=True, slots=True)
class Capture:
    """Make the graph of `variant`, then call the machine's `captured` or `not_captured`, or `later` where it is not
    ready yet: the same instruction then comes before a later step."""

    variant: Variant


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Start making a plan for `variant`. Call `planned` once there is one, `not_planned` where there is none, or
    `nothing_to_correct` at once."""

    variant: Variant


@dataclass(frozen=True, slots=True)
class UsePlan:
    """The best plan of `variant` is plan number `plan` of its search, counted from 0."""

    variant: Variant
    plan: int


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """No plan of `variant` is tried: the first look at it was far slower than the best way known, or its plan predicts
    to be slower."""

    variant: Variant


@dataclass(frozen=True, slots=True)
class Open:
    """Make this contender (never a backend) ready to run, then call `opened` of the machine's `contest`."""

    contender: ContenderId


@dataclass(frozen=True, slots=True)
class Compared:
    """`contender` was compared with the best before it, or once more with the default; `verdict` is the outcome.

    Release the slower one."""

    contender: ContenderId
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Refuse:
    """Never run `contender` again: its results differ from the default's, as `difference` says."""

    contender: ContenderId
    difference: str


@dataclass(frozen=True, slots=True)
class Settle:
    """`contender` runs from now on: release what the others hold."""

    contender: ContenderId


@dataclass(frozen=True, slots=True)
class Unsettle:
    """It is open again which contender is the fastest. With `forget` a stored plan ran; release it.

    With `further` one more contender is tried, and the fastest before it stays in reports meanwhile.
    """

    forget: bool = False
    further: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Store the plan of `variant`, whose steps take `step_s` seconds, for later processes."""

    variant: Variant
    step_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The default runs from now on: release what all others hold."""

    reason: str


Instruction = Capture | MakePlan | UsePlan | LeaveOut | Open | Compared | Refuse | Settle | Unsettle | Store | GiveUp
Instructions = tuple[Instruction, ...]
