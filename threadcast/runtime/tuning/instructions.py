"""What `TuningMachine` says: what runs the next step, and what has to be done before it."""

from __future__ import annotations

from dataclasses import dataclass

from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuning.contender_id import ContenderId
from threadcast.runtime.tuning.guard import Verdict
from threadcast.runtime.tuning.plan_search import Meanwhile, Probe, Try


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A step of the search for a plan of `variant`."""

    variant: Variant
    step: Probe | Try | Meanwhile


@dataclass(frozen=True, slots=True)
class ContenderStep:
    """A step by a contender; with `rest` the idle thread teams of all engines end first."""

    contender: ContenderId
    rest: bool = False


Runner = SearchStep | ContenderStep


@dataclass(frozen=True, slots=True)
class Capture:
    """Capture the graph of `variant`; answer with `captured` or `not_captured`."""

    variant: Variant


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Start to make a plan for `variant`; answer with `planned` once there is one, or with `nothing_to_correct`."""

    variant: Variant


@dataclass(frozen=True, slots=True)
class UsePlan:
    """The best plan of `variant` is its plan number `plan`."""

    variant: Variant
    plan: int


@dataclass(frozen=True, slots=True)
class Searched:
    """All `variants` have their best plans; the fastest comes first."""

    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """Make this contender, not a backend, ready to run; answer with `opened`."""

    contender: ContenderId


@dataclass(frozen=True, slots=True)
class OpenBackend:
    """Make the next backend ready to run; answer with `opened` or `no_backend`."""


@dataclass(frozen=True, slots=True)
class Compared:
    """`contender` was compared with the best before it."""

    contender: ContenderId
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Refuse:
    """The results of `contender` differ from the default's: it does not run again."""

    contender: ContenderId
    difference: str


@dataclass(frozen=True, slots=True)
class Settle:
    """`contender` runs from now on: let the others go."""

    contender: ContenderId


@dataclass(frozen=True, slots=True)
class Unsettle:
    """What ran is in question again; with `forget` it was a stored plan, which is let go."""

    forget: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Store the plan of `variant`, whose steps take `step_s` seconds, for later processes."""

    variant: Variant
    step_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The default runs from now on: let all else go."""

    reason: str


Instruction = (
    Capture
    | MakePlan
    | UsePlan
    | Searched
    | Open
    | OpenBackend
    | Compared
    | Refuse
    | Settle
    | Unsettle
    | Store
    | GiveUp
)
Instructions = tuple[Instruction, ...]
