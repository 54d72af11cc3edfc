"""Numbers as text for people to read."""

from __future__ import annotations

import math

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))

MOST_SHARE = 10.0
"""Largest share that is written out in percent. A convention."""


def significant(value: float, digits: int = 3) -> str:
    """The number as text, rounded to `digits` significant digits; "-" for infinity and not-a-number.

    It is written without an exponent from 1e-4 up to 1e15.
    """
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    return f"{round(value, places):,.{max(places, 0)}f}"


def percent(share: float, digits: int = 3) -> str:
    """`share` in percent as text, without the sign. Below 0 it is "<0" and above ten times the whole ">1,000": how far
    beyond tells of what went wrong and not of what was to be measured."""
    if math.isfinite(share) and not 0 <= share <= MOST_SHARE:
        return "<0" if share < 0 else f">{100 * MOST_SHARE:,.0f}"
    return significant(100 * share, digits)


def duration(seconds: float, digits: int = 3) -> str:
    """`seconds` as text with a suitable unit ("1.25 ms"); "-" for infinity and not-a-number."""
    if not math.isfinite(seconds):
        return "-"
    scale, unit = next(((s, u) for s, u in _TIME_UNITS if abs(seconds) >= s), _TIME_UNITS[-1])
    return f"{significant(seconds / scale, digits)} {unit if seconds else 's'}"
