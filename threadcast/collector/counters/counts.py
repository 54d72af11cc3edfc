"""From what the kernel counted in each thread to the count of a team, with the part of it that had to be inferred."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Reading(NamedTuple):
    """The kernel's count of one event in one thread.

    `enabled_ns` is the time for which the thread ran while counting was on, `running_ns` the part of it in which the
    processor counted the event.
    """

    value: int
    enabled_ns: int
    running_ns: int


class Count(NamedTuple):
    """The number of events in all threads of a team.

    `inferred` is the part of `value` that was not counted but inferred from what was, because a thread or a part of its
    time was not counted. The rest was certainly counted, so the error of `value` is taken to be `inferred`.
    """

    value: float
    inferred: float = 0.0

    @property
    def relative_error(self) -> float:
        """From 0, all was counted, to 1, all was inferred."""
        return self.inferred / self.value if self.value else 0.0


def team_count(readings: Sequence[Reading | None]) -> Count | None:
    """The count of a team from the reading of each of its threads; None where it is unknown.

    A thread that was counted for a part of its time is scaled to the whole. A thread that ran but was not counted at
    all, because other events had the counters, is taken to have had events at the rate of the others; one that was not
    asked (None) as many as the others on average. A thread that did not run had none.
    """
    asked = [reading for reading in readings if reading is not None]
    counted = [reading for reading in asked if reading.running_ns]
    if not counted:
        idle = len(asked) == len(readings) and not any(reading.enabled_ns for reading in asked)
        return Count(0.0) if idle else None
    total = sum(reading.value * reading.enabled_ns / reading.running_ns for reading in counted)
    rate = total / sum(reading.enabled_ns for reading in counted)
    total += sum(rate * reading.enabled_ns for reading in asked if not reading.running_ns)
    total *= len(readings) / len(asked)
    return Count(total, max(0.0, total - sum(reading.value for reading in counted)))


def join_kinds_of_core(readings: Iterable[Reading]) -> Reading:
    """The reading of a thread from those that each kind of core counted while the thread ran on it."""
    listed = list(readings)
    enabled_ns = max(reading.enabled_ns for reading in listed)
    running_ns = min(enabled_ns, sum(reading.running_ns for reading in listed))
    return Reading(sum(reading.value for reading in listed), enabled_ns, running_ns)
