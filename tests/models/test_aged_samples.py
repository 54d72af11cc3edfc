"""Old measurements are less certain; those that do not say when they were made are not taken to be ancient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.models.synthetic_ops import MACHINE, make_ops
from threadcast.core import Case, Measurement, Sample
from threadcast.core.measurement import Doubt
from threadcast.core.measurement_time import UNDATED_S
from threadcast.models.aged_samples import aged_samples
from threadcast.models.intervals import NORMAL_95
from threadcast.store.holding import FADE_S


def measurement(threads: int, *, time: str | None = None) -> Measurement:
    (op,) = make_ops(1)
    return Measurement(op, MACHINE, Case(threads), (Sample(0.1),), {} if time is None else {"time": time})


def ages(*found: Measurement) -> dict[int, float]:
    """The age of each in units of `FADE_S`, by thread count, as its noise tells."""
    by_case = {one.case: one for one in found}
    positions, _, noise = aged_samples(by_case, {case: case.threads for case in by_case}, np.full(5, 0.01))
    return {at: 100 * variance - 1 for at, variance in zip(positions, noise, strict=True)}


def test_an_undated_measurement_is_a_day_older_than_the_next_dated_one() -> None:
    found = ages(measurement(1), measurement(2, time="2026-11-01T00:00:00+00:00"))
    assert found == {1: pytest.approx(UNDATED_S / FADE_S, abs=1e-4), 2: pytest.approx(0.0)}


def test_dated_measurements_are_as_old_as_they_say() -> None:
    found = ages(measurement(1, time="2026-11-01T00:00:00+00:00"), measurement(2, time="2026-11-03T00:00:00+00:00"))
    assert found == {1: pytest.approx(2 * 86400.0 / FADE_S), 2: pytest.approx(0.0)}


def test_more_samples_are_more_certain_and_doubt_is_added() -> None:
    doubt = Doubt(0.2 * NORMAL_95, 0.2 * NORMAL_95, stale=False)
    five = replace(measurement(1), samples=(Sample(0.1),) * 5)
    found = {one.case: one for one in (five, replace(five, case=Case(2), doubt=doubt))}
    where, logs, noise = aged_samples(found, {case: case.threads for case in found}, np.full(5, 0.01))
    assert where == (1, 2)
    assert logs == pytest.approx([np.log(0.1)] * 2)
    assert noise == pytest.approx([0.002, 0.002 + 0.2**2])
