"""The measurements of an op as numbers, by age: old ones count for fewer samples."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threadcast.core import Case, Measurement
from threadcast.core.measurement_time import dated
from threadcast.models.doubts import variance
from threadcast.models.sample_noise import NARROW
from threadcast.store.holding import FADE_S


def aged_samples(
    measured_at: Mapping[Case, Measurement], position: Mapping[Case, int]
) -> tuple[tuple[int, ...], list[float], list[float]]:
    """The measurements at the cases that have a `position`, the oldest first, as three sequences of equal length.

    They are the positions of the cases, log seconds, and how many samples each median counts for: half as many once it
    is `FADE_S` older than the newest; those that do not say when they were made have the dates of `dated`. A
    measurement in doubt counts for so few that its noise is as large as the doubt.
    """
    times = dated(list(measured_at.values()))
    known = [
        (time_s, position[case], math.log(measured.seconds), len(measured.samples), variance(measured))
        for time_s, (case, measured) in zip(times, measured_at.items(), strict=True)
        if case in position
    ]
    known.sort()
    newest_s = known[-1][0] if known else 0.0
    return (
        tuple([one[1] for one in known]), [one[2] for one in known],
        [one[3] / (1 + (newest_s - one[0]) / FADE_S + one[3] * one[4] / NARROW**2) for one in known],
    )  # fmt: skip
