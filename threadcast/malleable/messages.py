"""The messages between a process, the arbiter and the command line, as frozen classes, and their JSON.

`docs/formats.md` lists them; `message_reading` reads them. Cores are tuples in these classes and arrays in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threadcast.malleable.division import Claim
from threadcast.malleable.limits import Cores


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many cores a process can use (`most` None: any number), and the only CPUs that it may use (None: all)."""

    least: int = 1
    most: int | None = None
    allowed: Cores | None = None


@dataclass(frozen=True, slots=True)
class Remaining:
    """Work that is left until a deadline: `steps` steps from now, within `in_s` seconds from now."""

    steps: float
    in_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A process joins the arbiter. `in_use` are the cores that an earlier arbiter gave it.

    `rates` are the steps a second that it expects, by number of cores.
    """

    name: str = ""
    weight: float = 1.0
    bounds: Bounds = field(default_factory=Bounds)
    in_use: Cores = ()
    rates: Mapping[int, float] = field(default_factory=dict)
    deadline: Remaining | None = None

    @property
    def claim(self) -> Claim:
        """The claim by which the cores are divided."""
        return Claim(self.weight, self.bounds.least, self.bounds.most, self.rates)


@dataclass(frozen=True, slots=True)
class Confirm:
    """A process has obeyed the order with this number: it uses these cores and no others."""

    order: int
    in_use: Cores


@dataclass(frozen=True, slots=True)
class SetBounds:
    """A process can use other numbers of cores, or other cores, than it has told before."""

    bounds: Bounds


@dataclass(frozen=True, slots=True)
class ExpectRates:
    """Steps a second that a process expects, by number of cores; only their ratios count."""

    rates: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class ReportSteps:
    """A process reports how many steps it has made since it began."""

    count: float


@dataclass(frozen=True, slots=True)
class ReportLearning:
    """A process reports in words what its optimised steps are still learning; empty: nothing."""

    what: str


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """A process sets a deadline; None: it has none any more."""

    remaining: Remaining | None


@dataclass(frozen=True, slots=True)
class ListProcesses:
    """A question to the arbiter, from any program: which processes have which cores?"""


Request = Join | Confirm | SetBounds | ExpectRates | ReportSteps | ReportLearning | SetDeadline | ListProcesses


@dataclass(frozen=True, slots=True)
class UseCores:
    """The arbiter's order to a process: use these cores and no others, then confirm the order by its number."""

    cores: Cores
    order: int


@dataclass(frozen=True, slots=True)
class DeadlineStatus:
    """The work that is left until a deadline, and whether the deadline will be met (None: not known yet)."""

    remaining: Remaining
    met: bool | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A message was not accepted, for this reason."""

    reason: str


ArbiterMessage = UseCores | DeadlineStatus | Refusal


@dataclass(frozen=True, slots=True)
class Resize:
    """A request to a process: use this number of cores, or these cores, or all (None)."""

    cores: int | Cores | None = None


@dataclass(frozen=True, slots=True)
class AskLimits:
    """A question to a process: which cores may it use at most, and which does it use now?"""


Question = Resize | AskLimits


def to_json(message: Request | ArbiterMessage) -> dict[str, Any]:
    """Return the JSON object of a message."""
    match message:
        case Join():
            asked: dict[str, Any] = {"name": message.name, "weight": message.weight, "holds": message.in_use}
            rates = {"progress": _rates_to_json(message.rates)} if message.rates else {}
            deadline = {"deadline": _remaining_to_json(message.deadline)} if message.deadline else {}
            return {"join": {**asked, **_bounds_to_json(message.bounds), **rates, **deadline}}
        case Confirm(order, in_use):
            return {"holds": in_use, "order": order}
        case SetBounds(bounds):
            return {"bounds": _bounds_to_json(bounds)}
        case ExpectRates(rates):
            return {"progress": _rates_to_json(rates)}
        case ReportSteps(count):
            return {"steps": count}
        case ReportLearning(what):
            return {"learning": what}
        case SetDeadline(remaining):
            return {"deadline": _remaining_to_json(remaining)}
        case ListProcesses():
            return {"who": "all"}
        case UseCores(cores, order):
            return {"cores": cores, "order": order}
        case DeadlineStatus():
            return {"deadline": status_to_json(message)}
        case Refusal(reason):
            return {"error": reason}


def status_to_json(status: DeadlineStatus) -> dict[str, Any]:
    """Return the value of the member `deadline` in the arbiter's messages."""
    return {"steps": status.remaining.steps, "in_s": status.remaining.in_s, "met": status.met}


def _bounds_to_json(bounds: Bounds) -> dict[str, Any]:
    most = {} if bounds.most is None else {"most": bounds.most}
    allowed = {} if bounds.allowed is None else {"may": bounds.allowed}
    return {"least": bounds.least, **most, **allowed}


def _remaining_to_json(remaining: Remaining | None) -> dict[str, Any] | None:
    return None if remaining is None else {"steps": remaining.steps, "in_s": remaining.in_s}


def _rates_to_json(rates: Mapping[int, float]) -> dict[str, float]:
    return {str(cores): rate for cores, rate in rates.items()}
