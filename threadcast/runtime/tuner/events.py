"""What a tournament is told of calls and candidates, and what it answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from threadcast.runtime.tuner.guard import Verdict

Key = Hashable
"""What identifies a candidate; its text names it in reports."""


class Place(Enum):
    """Where the next part of a candidate's preparation takes place."""

    BETWEEN = "between calls"
    CALL = "in a call"
    BESIDE = "beside calls"
    """Something is at work in another thread or process; what comes then is reported once it is there."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A candidate that may be prepared, or that is `ready` to run.

    `gain` is the ratio of the baseline's seconds to its own that is expected, `most` the largest that is likely, and
    `cost_s` what its preparation is expected to take from calls. `earlier`: it was made for other calls, or by another
    process: where it loses or differs, it is dropped (`Drop`) and may be offered anew. `bit_by_bit`: its preparation
    takes from calls what may be spent, so that it begins with whatever that is.
    """

    key: Key
    gain: float = 1.5
    most: float = 3.0
    cost_s: float = 1.0
    ready: bool = False
    earlier: bool = False
    bit_by_bit: bool = False


@dataclass(frozen=True, slots=True)
class Staged:
    """The preparation of a candidate goes on at this place; the next part is expected to cost calls `cost_s`."""

    key: Key
    place: Place
    cost_s: float = 0.0
    begun: bool = False
    """Whether the part has begun and is not complete; a part that is begun anew has not."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A candidate is prepared, and can run; its calls are expected to take `step_s` seconds (None: not known), and the
    first one `first_s` more."""

    key: Key
    step_s: float | None = None
    first_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A candidate never runs again, for this reason. `differs`: its results are not the baseline's."""

    key: Key
    reason: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    """What an earlier process found runs from the first call on.

    Its calls took `step_s` seconds then, and the baseline's `eager_s` (None: not known).
    """

    key: Key
    step_s: float
    eager_s: float | None = None


@dataclass(frozen=True, slots=True)
class Next:
    """A call comes: `left_s` seconds may be spent on learning. `disturbed`: something computes on the cores, so that
    calls tell nothing of how fast they are, and the best candidate runs."""

    left_s: float
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """The call that `Next` was answered for has run: `seconds`, and `call_s` with all that was done around it.

    `started_s` is a time of a clock. `all_cores`: it had all cores that it was prepared for; `alone`: nothing else of
    this process computed beside it.
    """

    started_s: float
    seconds: float
    call_s: float
    all_cores: bool = True
    alone: bool = True


@dataclass(frozen=True, slots=True)
class Passed:
    """So many calls have run by the best candidate, none of which was timed (`Tournament.passes`)."""

    calls: int


Event = Offered | Staged | Ready | LeftOut | Resumed | Next | Ran | Passed


@dataclass(frozen=True, slots=True)
class Run:
    """A candidate runs the next call."""

    key: Key


@dataclass(frozen=True, slots=True)
class RunStage:
    """A part of the preparation of a candidate runs the next call; `anew`: what has begun of it is forgotten."""

    key: Key
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Do the next part of a candidate's preparation now, report what follows, and ask `Next` again."""

    key: Key


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate was compared with another."""

    key: Key
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Release:
    """A candidate will not run soon: release what it holds."""

    key: Key


@dataclass(frozen=True, slots=True)
class Settle:
    """A candidate runs from now on, and is watched."""

    key: Key


@dataclass(frozen=True, slots=True)
class Unsettle:
    """It is open again which candidate is the fastest."""


@dataclass(frozen=True, slots=True)
class Keep:
    """What was kept takes `step_s` seconds, in its comparison or alone: store it for later processes."""

    key: Key
    step_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """A candidate never runs again, for this reason. One that was made `earlier` may be made anew, and offered."""

    key: Key
    reason: str
    differs: bool = False
    earlier: bool = False


Instruction = Run | RunStage | Prepare | Compared | Release | Settle | Unsettle | Keep | Drop
Instructions = tuple[Instruction, ...]


class Outlook(NamedTuple):
    """Where what is learned next takes place, and what it is expected to cost calls; None: nothing is left."""

    place: Place | None
    cost_s: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[Outlook]) -> Outlook:
        """Return what is learned next of several parts: in calls where it is of any."""
        found = list(parts)
        costs_s = [one.cost_s for one in found if one.place is Place.CALL]
        if costs_s:
            return cls(Place.CALL, min(costs_s))
        return cls(Place.BESIDE if any(one.place is not None for one in found) else None)
