"""The measurements of an op as numbers, by age: old ones are less certain."""

from __future__ import annotations

import math
from collections.abc import Mapping

from threadcast.core import Case, Measurement
from threadcast.core.curve import Floats
from threadcast.core.measurement_time import dated
from threadcast.models.doubts import variance
from threadcast.store.holding import FADE_S


def aged_samples(
    measured_at: Mapping[Case, Measurement], position: Mapping[Case, int], noise: Floats
) -> tuple[tuple[int, ...], list[float], list[float]]:
    """The positions of the cases that have one, log seconds there, and the variance of each around the true value.

    `noise` (n_cases,) is the variance of the log of one sample. It is divided by the number of samples, and twice as
    large for a measurement that is `FADE_S` older than the newest; those that do not say when they were made have the
    dates of `dated`. The doubt about a measurement is added.
    """
    times = dated(list(measured_at.values()))
    known = [
        (time_s, position[case], measured)
        for time_s, (case, measured) in zip(times, measured_at.items(), strict=True)
        if case in position
    ]
    newest_s = max((time_s for time_s, _, _ in known), default=0.0)
    known.sort(key=lambda one: one[1])
    return (
        tuple(at for _, at, _ in known), [math.log(measured.seconds) for _, _, measured in known],
        [
            float(noise[at]) * (1 + (newest_s - time_s) / FADE_S) / len(measured.samples) + variance(measured)
            for time_s, at, measured in known
        ],
    )  # fmt: skip
