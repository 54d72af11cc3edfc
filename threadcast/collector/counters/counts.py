"""From what the kernel counted in each thread to the count of a team, which is whole or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

WHOLE = 0.99
"""Share of a thread's time for which an event must have been counted, which is then scaled to all of it."""


class Reading(NamedTuple):
    """The kernel's count of one event in one thread.

    `enabled_ns` is the time for which the thread ran while counting was on, `running_ns` the part of it in which the
    processor counted the event.
    """

    value: int
    enabled_ns: int
    running_ns: int


def team_count(readings: Sequence[Reading | None]) -> float | None:
    """The number of events in all threads of a team; None where one was not read, or others had its counter."""
    total = 0.0
    for reading in readings:
        if reading is None or reading.running_ns < WHOLE * reading.enabled_ns:
            return None
        total += reading.value * reading.enabled_ns / reading.running_ns if reading.running_ns else 0.0
    return total


def join_kinds_of_core(readings: Iterable[Reading]) -> Reading:
    """The reading of a thread from those that each kind of core counted while the thread ran on it."""
    listed = list(readings)
    enabled_ns = max(reading.enabled_ns for reading in listed)
    running_ns = min(enabled_ns, sum(reading.running_ns for reading in listed))
    return Reading(sum(reading.value for reading in listed), enabled_ns, running_ns)
