"""When measurements were made, and which of them no longer hold because the machine has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from threadcast.core.measurement import Measurement

REPLACES = "replaces_before"
"""Condition of measurements made after the machine had changed: ISO time before which others no longer hold."""

UNDATED_S = 86400.0
"""Assumed time between a measurement that does not say when it was made and the next one that does. A convention: they
were hardly made in one session, of which all measurements say it or none."""


def made_at(found: Measurement) -> datetime | None:
    """When the measurement was made (condition "time"); None where it does not say."""
    return _time(found.conditions.get("time"))


def dated(found: Sequence[Measurement]) -> list[float]:
    """When each measurement was made, in seconds since 1970; `found` is in the order in which it was stored.

    Those that do not say are dated a second apart, up to `UNDATED_S` before the next one that does, which was stored
    later; else from the one before on. If none does, the numbers under which a store holds them are their dates.
    """
    made = map(made_at, found)
    times = [None if time is None else time.timestamp() for time in made]
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


def read_time(text: object) -> datetime | None:
    """The time in the text of a condition, in UTC where it names no zone; None where it is no time."""
    return _time(text)


def not_void(found: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements, of one machine, that no other of them declares void; those without a time are kept."""
    replacing = [text for m in found if (text := m.conditions.get(REPLACES)) is not None]
    limits = [limit for text in replacing if (limit := _time(text)) is not None]
    if not limits:
        return found
    return [m for m in found if (time := made_at(m)) is None or time >= max(limits)]


def _time(text: object) -> datetime | None:
    if text is None:  # parsing "None" would raise, which takes long for thousands of measurements
        return None
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
