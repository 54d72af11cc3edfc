"""The messages between a process, the arbiter and the command line: what they hold, read and checked.

Messages are JSON objects; `docs/formats.md` lists them. Cores are tuples here and arrays in JSON. All readers raise
FormatError, which says what is wrong in a message, and where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.core.json_reading import checked, finite, member
from threadcast.malleable.division import Claim, check_bounds
from threadcast.malleable.limits import Cores

LARGEST = 1e15
"""Largest magnitude of a number in a message; sums of larger floating-point numbers would lose small terms. Rates are
not below its inverse: what is measured is divided by them."""
LONGEST_NAME = 200
"""Characters of a process's name, and of what it says of its learning; the rest is cut off."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many cores a process can use (`most` None: any number), and the only CPUs that it `may` use (None: all)."""

    least: int = 1
    most: int | None = None
    may: Cores | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the members of a message that say so."""
        given = {"least": self.least, "most": self.most, "may": self.may}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Join:
    """A process joins the arbiter. `holds` are the cores that an earlier arbiter gave it.

    `progress` are the steps a second that it expects, by number of cores. `process` is its number, where another one
    says all this for it.
    """

    name: str = ""
    weight: float = 1.0
    bounds: Bounds = field(default_factory=Bounds)
    holds: Cores = ()
    progress: Mapping[int, float] = field(default_factory=dict)
    process: int | None = None

    @property
    def claim(self) -> Claim:
        """The claim by which the cores are divided."""
        return Claim(self.weight, self.bounds.least, self.bounds.most, self.progress)


@dataclass(frozen=True, slots=True)
class Confirm:
    """A process has obeyed the order with this number: it uses these cores and no others."""

    order: int
    holds: Cores


def requests_of(message: Message) -> dict[str, Any]:
    """Return what a message asks of the arbiter, by member; empty where the message has no known member.

    That is a `Join`, a `Confirm` ("holds"), `Bounds`, rates by number of cores ("progress"), a number ("steps") or a
    text ("learning"). "who" and "join" stand alone.
    """
    for alone in ("who", "join"):
        if alone in message:
            return {alone: _READERS[alone](message)}
    return {name: read(message) for name, read in _READERS.items() if name in message}


def order_of(message: Message) -> Confirm:
    """Return the arbiter's order in a message as what confirms it: its number (0 for none), and the cores to use."""
    return Confirm(_whole(message, "order", "", default=0), cores_of(message, "cores"))


def asks_limits(message: Message) -> bool:
    """Return whether a message asks a process which cores it may use, and which it does."""
    return "limits" in message and _all(message, "limits")


def resize_of(message: Message) -> int | Cores | None:
    """Return how many cores, or which ones, a process is asked to use; None for all."""
    if "resize" not in message:
        raise FormatError("a process answers to resize and to limits")
    asked: Any = message["resize"]
    if asked is None or type(asked) is int:
        found: int | None = asked
        return found
    if isinstance(asked, list):
        return cores_of(message, "resize")
    raise FormatError(f"resize must be a number of cores, cores, or null for all: {asked!s:.80}", pointer="/resize")


def cores_of(message: Message, name: str, pointer: str = "") -> Cores:
    """Return the cores in the member `name`, each as the tuple of its hardware threads' CPU numbers."""
    value = member(message, name, list, pointer=pointer)
    if not all(
        isinstance(core, list) and core and all(type(cpu) is int and cpu >= 0 for cpu in core) for core in value
    ):
        raise FormatError(f"{name} must be cores, each a list of CPUs: {value!r:.80}", pointer=f"{pointer}/{name}")
    return tuple(map(tuple, value))


def _join(message: Message) -> Join:
    asked, at = message["join"], "/join"
    name = member(asked, "name", str, pointer=at, default="")[:LONGEST_NAME]
    found = Join(
        "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name),
        _number(asked, "weight", at, default=1.0),
        _bounds(asked, at),
        cores_of(asked, "holds", at),
        {} if asked.get("progress") is None else _rates(asked, at),
        None if asked.get("process") is None else _whole(asked, "process", at),
    )
    checked(lambda: found.claim, pointer=at)
    return found


def _bounds(asked: Message, pointer: str) -> Bounds:
    least = _whole(asked, "least", pointer, default=1)
    most = None if asked.get("most") is None else _whole(asked, "most", pointer)
    allowed = cores_of(asked, "may", pointer) if "may" in asked else None
    checked(lambda: check_bounds(least, most), pointer=pointer)
    return Bounds(least, most, allowed)


def _rates(message: Message, pointer: str) -> dict[int, float]:
    found = {}
    at = f"{pointer}/progress"
    for cores, rate in member(message, "progress", dict, pointer=pointer).items():
        if not (cores.isascii() and cores.isdigit() and len(cores) < 16 and int(cores) > 0):
            raise FormatError(f"progress: {cores!r:.40} must be a number of cores from 1 on", pointer=at)
        found[int(cores)] = finite(rate, pointer=f"{at}/{cores}", minimum=0.0)
        if found[int(cores)] and not 1 / LARGEST <= found[int(cores)] <= LARGEST:
            raise FormatError(f"progress: rates are 0, or {1 / LARGEST:g} to {LARGEST:g}", pointer=f"{at}/{cores}")
    return found


def _number(message: Message, name: str, pointer: str, *, default: float | None = None) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise FormatError(f"{name} must be a number, at most {LARGEST:g}", pointer=f"{pointer}/{name}")
    return float(value)


def _whole(message: Message, name: str, pointer: str, *, default: int | None = None) -> int:
    value = _number(message, name, pointer, default=default)
    if not value.is_integer():
        raise FormatError(f"{name} must be a whole number, got {value:g}", pointer=f"{pointer}/{name}")
    return int(value)


def _all(message: Message, name: str) -> bool:
    if message[name] != "all":
        raise FormatError(f'{name} must be "all", got {message[name]!r:.40}', pointer=f"/{name}")
    return True


_READERS: dict[str, Callable[[Message], Any]] = {
    "who": lambda message: _all(message, "who"),
    "join": _join,
    "holds": lambda message: Confirm(_whole(message, "order", ""), cores_of(message, "holds")),
    "bounds": lambda message: _bounds(member(message, "bounds", dict), "/bounds"),
    "progress": lambda message: _rates(message, ""),
    "steps": lambda message: _number(message, "steps", ""),
    "learning": lambda message: member(message, "learning", str)[:LONGEST_NAME],
}
"""By member, in the order in which what a message says is carried out."""
