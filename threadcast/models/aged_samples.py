"""The measurements of an op as numbers, by age: old ones count for fewer samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from threadcast.core import Case, Measurement

FADE_S = 30 * 86400.0
"""Age in seconds at which a measurement counts for half as many samples as a new one of the op. A convention: a
month."""


def aged_samples(
    measured_at: Mapping[Case, Measurement], position: Mapping[Case, int]
) -> tuple[tuple[int, ...], list[float], list[float], list[float]]:
    """The measurements at the cases that have a `position`, the oldest first, as four sequences of equal length.

    They are the positions of the cases, log seconds, the number of samples behind each median, and the age in units of
    `FADE_S`, relative to the newest.
    """
    known = [
        (_time_s(measured), position[case], math.log(measured.seconds), len(measured.samples))
        for case, measured in measured_at.items()
        if case in position
    ]
    known.sort()
    newest_s = known[-1][0] if known else 0.0
    return (
        tuple([one[1] for one in known]), [one[2] for one in known], [one[3] for one in known],
        [(newest_s - one[0]) / FADE_S for one in known],
    )  # fmt: skip


def _time_s(measured: Measurement) -> float:
    """The time of the measurement in seconds since 1970; 0 where it is not known."""
    if "time" not in measured.conditions:
        return 0.0
    try:
        return datetime.fromisoformat(str(measured.conditions["time"])).timestamp()
    except ValueError:
        return 0.0
