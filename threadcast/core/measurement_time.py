"""When measurements were made, and which of them no longer hold because the machine has changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from threadcast.core.errors import InvalidInput
from threadcast.core.measurement import Measurement

T = TypeVar("T", bound=float | None)

REPLACES = "replaces_before"
"""Condition of measurements made after the machine had changed: ISO time before which others no longer hold."""

UNDATED_S = 86400.0
"""Assumed time between a measurement that does not say when it was made and the next one that does. A convention: they
were hardly made in one session, of which all measurements say it or none."""

AHEAD_S = 86400.0
"""How far the clock of a machine that measured may be ahead of that of a store. Beyond that, its times are wrong."""


def require_times(conditions: Mapping[str, Any], *, now_s: float) -> None:
    """Raise InvalidInput where the condition "time" or `REPLACES` is no time, or "time" is more than `AHEAD_S` after
    `now_s` (seconds since 1970)."""
    for name in ("time", REPLACES):
        given = conditions.get(name)
        if given is not None and not (isinstance(given, str) and read_time(given)):
            raise InvalidInput(
                f"the condition {name}={given!r} is no time; give ISO 8601, as 2026-11-29T16:00:00Z, or leave it out"
            )
    time = read_time(conditions.get("time"))
    if time is not None and time.timestamp() > now_s + AHEAD_S:
        raise InvalidInput(
            f"the condition time={conditions['time']!r} is more than a day ahead of the clock here; correct the time, "
            "and the clock of the machine that measured"
        )


def date_s(time: object, stored_s: T) -> float | T:
    """When a measurement with this condition "time" was made, in seconds since 1970, for forecasts, pages and pruning.

    Where there is no time, or one more than `AHEAD_S` after it was stored, it is when that was; None where neither is
    known.
    """
    made = read_time(time)
    if made is None or (stored_s is not None and made.timestamp() > stored_s + AHEAD_S):
        return stored_s
    return made.timestamp()


def made_at(found: Measurement) -> datetime | None:
    """When the measurement was made (condition "time", or `date_s` where that is wrong); None where it does not say."""
    time = read_time(found.conditions.get("time"))
    if time is None or found.stored_s is None or time.timestamp() <= found.stored_s + AHEAD_S:
        return time
    return datetime.fromtimestamp(found.stored_s, UTC)


def dated(found: Sequence[Measurement]) -> list[float]:
    """When each measurement was made, in seconds since 1970; `found` is in the order in which it was stored.

    It is what `date_s` says. Where that is nothing, as outside of stores, they are dated a second apart, up to
    `UNDATED_S` before the next one that has a date, which was stored later; else from the one before on. If none has,
    the numbers under which a store holds them are their dates.
    """
    times = [date_s(m.conditions.get("time"), m.stored_s) for m in found]
    known = [i for i, time in enumerate(times) if time is not None]
    if len(known) == len(times):
        return [time for time in times if time is not None]
    if not known and all(m.number for m in found):
        return [float(m.number) for m in found]
    dates: list[float] = []
    at = 0
    for i, time in enumerate(times):
        while at < len(known) and known[at] < i:
            at += 1
        anchor = known[min(at, len(known) - 1)] if known else 0
        before_s = UNDATED_S if anchor > i else 0.0
        dates.append((times[anchor] or 0.0) - before_s + i - anchor if time is None else time)
    return dates


def not_void(found: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements, of one machine, that no other of them declares void; those without a time are kept.

    None can replace what was made after itself: such declarations are passed over.
    """
    replacing = [(m, text) for m in found if (text := m.conditions.get(REPLACES)) is not None]
    limits = [limit for m, text in replacing if (limit := read_time(text)) is not None and not _after(limit, m)]
    if not limits:
        return found
    return [m for m in found if (time := made_at(m)) is None or time >= max(limits)]


def _after(time: datetime, measurement: Measurement) -> bool:
    made_s = date_s(measurement.conditions.get("time"), measurement.stored_s)
    return made_s is not None and time.timestamp() > made_s


def read_time(text: object) -> datetime | None:
    """The time in the text of a condition, in UTC where it names no zone; None where it is no time."""
    if text is None:  # parsing "None" would raise, which takes long for thousands of measurements
        return None
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
