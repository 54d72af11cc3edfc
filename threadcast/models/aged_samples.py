"""The measurements of an op as numbers, by age: old ones count for fewer samples."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threadcast.core import Case, Measurement
from threadcast.core.holding import FADE_S
from threadcast.core.measurement_time import made_at
from threadcast.models.doubts import variance
from threadcast.models.sample_noise import NARROW


def aged_samples(
    measured_at: Mapping[Case, Measurement], position: Mapping[Case, int]
) -> tuple[tuple[int, ...], list[float], list[float], list[float]]:
    """The measurements at the cases that have a `position`, the oldest first, as four sequences of equal length.

    They are the positions of the cases, log seconds, the number of samples behind each median, and the age in units of
    `FADE_S`, relative to the newest. A measurement in doubt counts as so old that its noise is as large as the doubt.
    """
    known = [
        (_time_s(measured), position[case], math.log(measured.seconds), len(measured.samples), variance(measured))
        for case, measured in measured_at.items()
        if case in position
    ]
    known.sort()
    newest_s = known[-1][0] if known else 0.0
    return (
        tuple([one[1] for one in known]), [one[2] for one in known], [one[3] for one in known],
        [(newest_s - one[0]) / FADE_S + one[3] * one[4] / NARROW**2 for one in known],
    )  # fmt: skip


def _time_s(measured: Measurement) -> float:
    """The time of the measurement in seconds since 1970; 0 where it is not known."""
    time = made_at(measured)
    return 0.0 if time is None else time.timestamp()
