"""Reads and checks the JSON messages between a process, the arbiter and the command line.

All functions raise FormatError, which says what is wrong in a message, and where.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.core.json_reading import checked, finite, member
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.division import check_bounds
from threadcast.malleable.limits import Cores
from threadcast.malleable.messages import (
    ArbiterMessage,
    AskLimits,
    Bounds,
    Confirm,
    DeadlineStatus,
    ExpectRates,
    Join,
    ListProcesses,
    Question,
    Refusal,
    Remaining,
    ReportLearning,
    ReportSteps,
    Request,
    Resize,
    SetBounds,
    SetDeadline,
    UseCores,
)  # fmt: skip

LARGEST = 1e15
"""Largest magnitude of a number in a message; sums of larger floating-point numbers would lose small terms. Rates are
not below its inverse: what is measured is divided by them."""
LONGEST_NAME = 200
"""Characters of a process's name, and of what it says of its learning; the rest is cut off."""


def requests_of(message: Mapping[str, Any]) -> tuple[Request, ...]:
    """Return the requests to the arbiter in a message; none where the message has no known member."""
    if "who" in message:
        _all(message, "who")
        return (ListProcesses(),)
    if "join" in message:
        return (_join(message["join"]),)
    found: list[Request] = []
    if "holds" in message:
        found.append(Confirm(_whole(message, "order", ""), cores_of(message, "holds")))
    if "bounds" in message:
        found.append(SetBounds(_bounds(member(message, "bounds", dict), "/bounds")))
    if "progress" in message:
        found.append(ExpectRates(_rates(message, "")))
    if "steps" in message:
        found.append(ReportSteps(_number(message, "steps", "")))
    if "learning" in message:
        found.append(ReportLearning(member(message, "learning", str)[:LONGEST_NAME]))
    if "deadline" in message:
        found.append(SetDeadline(_remaining(message, "")))
    return tuple(found)


def arbiter_message_of(message: Mapping[str, Any]) -> ArbiterMessage:
    """Return the order, deadline status or refusal in a message of the arbiter."""
    if "error" in message:
        return Refusal(str(message["error"]))
    if isinstance(status := message.get("deadline"), dict):
        remaining = Remaining(_number(status, "steps", "/deadline"), _number(status, "in_s", "/deadline"))
        return DeadlineStatus(remaining, member(status, "met", bool, pointer="/deadline"))
    return UseCores(cores_of(message, "cores"), _whole(message, "order", "", default=0))


def question_of(message: Mapping[str, Any]) -> Question:
    """Return the question to a process in a message."""
    if "limits" in message:
        _all(message, "limits")
        return AskLimits()
    if "resize" not in message:
        raise FormatError("a process answers to resize and to limits")
    asked = message["resize"]
    if asked is None or type(asked) is int:
        return Resize(asked)
    if isinstance(asked, list):
        return Resize(cores_of(message, "resize"))
    raise FormatError(f"resize must be a number of cores, cores, or null for all: {asked!s:.80}", pointer="/resize")


def cores_of(message: Mapping[str, Any], name: str, pointer: str = "") -> Cores:
    """Return the cores in the member `name`, each as the tuple of its hardware threads' CPU numbers."""
    value = member(message, name, list, pointer=pointer)
    if not all(
        isinstance(core, list) and core and all(type(cpu) is int and cpu >= 0 for cpu in core) for core in value
    ):
        raise FormatError(f"{name} must be cores, each a list of CPUs: {value!r:.80}", pointer=f"{pointer}/{name}")
    return tuple(map(tuple, value))


def _join(asked: Any) -> Join:
    at = "/join"
    name = member(asked, "name", str, pointer=at, default="")[:LONGEST_NAME]
    found = Join(
        "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name),
        _number(asked, "weight", at, default=1.0),
        _bounds(asked, at),
        cores_of(asked, "holds", at),
        {} if asked.get("progress") is None else _rates(asked, at),
        _remaining(asked, at),
    )
    checked(lambda: found.claim, pointer=at)
    return found


def _bounds(asked: Mapping[str, Any], pointer: str) -> Bounds:
    least = _whole(asked, "least", pointer, default=1)
    most = None if asked.get("most") is None else _whole(asked, "most", pointer)
    allowed = cores_of(asked, "may", pointer) if "may" in asked else None
    checked(lambda: check_bounds(least, most), pointer=pointer)
    return Bounds(least, most, allowed)


def _rates(message: Mapping[str, Any], pointer: str) -> dict[int, float]:
    found = {}
    at = f"{pointer}/progress"
    for cores, rate in member(message, "progress", dict, pointer=pointer).items():
        if not (cores.isascii() and cores.isdigit() and len(cores) < 16 and int(cores) > 0):
            raise FormatError(f"progress: {cores!r:.40} must be a number of cores from 1 on", pointer=at)
        found[int(cores)] = finite(rate, pointer=f"{at}/{cores}", minimum=0.0)
        if found[int(cores)] and not 1 / LARGEST <= found[int(cores)] <= LARGEST:
            raise FormatError(f"progress: rates are 0, or {1 / LARGEST:g} to {LARGEST:g}", pointer=f"{at}/{cores}")
    return found


def _remaining(message: Mapping[str, Any], pointer: str) -> Remaining | None:
    if message.get("deadline") is None:
        return None
    asked, at = member(message, "deadline", dict, pointer=pointer), f"{pointer}/deadline"
    found = Remaining(_number(asked, "steps", at), _number(asked, "in_s", at))
    checked(lambda: Deadline.within(found.steps, found.in_s, now_s=0.0), pointer=at)
    return found


def _number(message: Mapping[str, Any], name: str, pointer: str, *, default: float | None = None) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        raise FormatError(f"{name} must be a number, at most {LARGEST:g}", pointer=f"{pointer}/{name}")
    return float(value)


def _whole(message: Mapping[str, Any], name: str, pointer: str, *, default: int | None = None) -> int:
    value = _number(message, name, pointer, default=default)
    if not value.is_integer():
        raise FormatError(f"{name} must be a whole number, got {value:g}", pointer=f"{pointer}/{name}")
    return int(value)


def _all(message: Mapping[str, Any], name: str) -> None:
    if message[name] != "all":
        raise FormatError(f'{name} must be "all", got {message[name]!r:.40}', pointer=f"/{name}")
