"""When measurements were made, and which of them no longer hold because the machine has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from threadcast.core.measurement import Measurement

REPLACES = "replaces_before"
"""Condition of measurements made after the machine had changed: ISO time before which others no longer hold."""


def made_at(found: Measurement) -> datetime | None:
    """When the measurement was made (condition "time"); None where it does not say."""
    return _time(found.conditions.get("time"))


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
