"""Measurements that no long-form file can hold, or that reading one would refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from threadcast.core import Measurement
from threadcast.core.errors import InvalidInput
from threadcast.core.measurement import LONGEST_S, SHORTEST_S
from threadcast.core.measurement_time import require_times

_LIMITS = f"samples outside of {SHORTEST_S:g} to {LONGEST_S:g} s"
_TIMES = "times more than a day ahead of the clock here, or none"


def unwritable_names(measurement: Measurement) -> list[str]:
    """The op kind and counters of a measurement that no file can hold: unprintable names, and padded ones."""
    names = dict.fromkeys([measurement.op.kind, *(name for sample in measurement.samples for name in sample.counters)])
    return [name for name in names if not name.isprintable() or name != name.strip()]


def wrong_values(measurement: Measurement, *, now_s: float) -> str:
    """The values of a measurement that reading a file would refuse at `now_s` (seconds since 1970), in words; empty
    where there are none."""
    if not all(SHORTEST_S <= sample.seconds <= LONGEST_S for sample in measurement.samples):
        return _LIMITS
    try:
        require_times(measurement.conditions, now_s=now_s)
    except InvalidInput:
        return _TIMES
    return ""


def is_writable(measurement: Measurement, *, now_s: float) -> bool:
    """Whether a file can hold the measurement, and reading it at `now_s` would not refuse it."""
    return not unwritable_names(measurement) and not wrong_values(measurement, now_s=now_s)


def wrong_values_by_op(measurements: Iterable[Measurement], *, now_s: float) -> list[str]:
    """A line of text for each op and kind of wrong values."""
    found = Counter((m.op.key, why) for m in measurements if (why := wrong_values(m, now_s=now_s)))
    return [f"measurements of {key} ({count}) are left out of exports: {why}" for (key, why), count in found.items()]
