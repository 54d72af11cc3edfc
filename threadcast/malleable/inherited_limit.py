"""Finds which CPUs limit a process whose affinity mask threadcast has set: in a process that started it, or before
`exec` or `detach` in the process itself."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from threadcast.core.errors import FormatError, InvalidInput, NotFound, ServiceUnavailable
from threadcast.core.sysfs import format_cpus, parse_cpus, read_text
from threadcast.core.topology import usable_cores
from threadcast.malleable.family import ancestors
from threadcast.malleable.limits import cpus_in
from threadcast.malleable.messages import cores_of
from threadcast.malleable.sockets import ask, socket_of

VARIABLE = "_THREADCAST_LIMIT"
"""Environment variable with what `record_limit` records; children inherit it, and so does what `exec` starts."""

ANSWER_S = 0.5
UNKNOWN = "-"
"""In place of what the kernel does not say: such a record counts nowhere."""


class _Record(NamedTuple):
    process: int
    limit: frozenset[int]
    mask: frozenset[int]


def limit_record(limit: Collection[int], mask: Collection[int]) -> str:
    """Return the value of `VARIABLE` for a process that may use the CPUs `limit` and has this affinity mask now."""
    return f"{_boot()} {os.getpid()} {format_cpus(limit)} {format_cpus(mask)}"


def mark_of(process: int) -> bytes:
    """Return what the environment of whatever the process with this number has started holds, unless it was cleared."""
    return f"{VARIABLE}={_boot()} {process} ".encode()


def record_limit(limit: Collection[int], mask: Collection[int]) -> None:
    """Record in the environment that threadcast has set the affinity mask, in place of the CPUs `limit`."""
    os.environ[VARIABLE] = limit_record(limit, mask)


def inherited_limit() -> frozenset[int] | None:
    """Return the CPUs that limit this process in place of its affinity mask, where threadcast has set that mask.

    Cores that an attached process has just now limit neither its children nor what it becomes by `exec`; its own limits
    do. A live ancestor is asked, as it may have other cores since; else what was recorded counts. None where the mask
    is neither the attached ancestor's nor the recorded one: somebody else has set it.
    """
    mask, record = frozenset(os.sched_getaffinity(0)), _recorded()
    if record is not None and record.mask != mask:
        record = None
    for one in (os.getpid(), *ancestors(os.getpid())):  # who manages it from outside until now gives way once asked
        path = socket_of(one)
        if path.exists():
            with suppress(NotFound, ServiceUnavailable, FormatError):
                answer = ask(path, {"limits": "all"}, ANSWER_S)
                limits, cores = cpus_in(cores_of(answer, "limits")), cpus_in(cores_of(answer, "cores"))
                if mask == cores:
                    return limits
        if record is not None and record.process == one:
            return record.limit
    return None if record is None else record.limit


def check_least(least: int) -> None:
    """Raise InvalidInput for more cores than this process may use at all: it would never get its least."""
    usable = usable_cores(affinity=inherited_limit())
    if least > usable.cores:
        why = f" ({usable.limited_by})" if usable.limited_by else ""
        raise InvalidInput(
            f"least={least} is more than the {usable.cores} cores that may be used here{why}; ask for fewer"
        )


def _recorded() -> _Record | None:
    """What the environment records; None where that is nothing, garbled, or of another machine."""
    match os.environ.get(VARIABLE, "").split():
        case [boot, process, limit_text, mask_text] if boot == _boot() != UNKNOWN and process.isdecimal():
            limit, mask = parse_cpus(limit_text), parse_cpus(mask_text)
            return None if limit is None or mask is None else _Record(int(process), limit, mask)
    return None


def _boot() -> str:
    """What the kernel calls the time since this machine was started: launchers take environments to other machines."""
    return read_text("/proc/sys/kernel/random/boot_id") or UNKNOWN
