"""Old measurements count for fewer samples; those that do not say when they were made are not taken to be ancient."""

from __future__ import annotations

import pytest

from tests.models.synthetic_ops import MACHINE, make_ops
from threadcast.core import Case, Measurement, Sample
from threadcast.core.measurement_time import UNDATED_S
from threadcast.models.aged_samples import aged_samples
from threadcast.store.holding import FADE_S


def measurement(threads: int, *, time: str | None = None) -> Measurement:
    (op,) = make_ops(1)
    return Measurement(op, MACHINE, Case(threads), (Sample(0.1),), {} if time is None else {"time": time})


def ages(*found: Measurement) -> dict[int, float]:
    """The age of each in units of `FADE_S`, by thread count."""
    positions, _, counts = aged_samples({one.case: one for one in found}, {one.case: one.case.threads for one in found})
    return {at: 1 / count - 1 for at, count in zip(positions, counts, strict=True)}


def test_an_undated_measurement_is_a_day_older_than_the_next_dated_one() -> None:
    found = ages(measurement(1), measurement(2, time="2026-11-01T00:00:00+00:00"))
    assert found == {1: pytest.approx(UNDATED_S / FADE_S, abs=1e-4), 2: 0.0}


def test_dated_measurements_are_as_old_as_they_say() -> None:
    found = ages(measurement(1, time="2026-11-01T00:00:00+00:00"), measurement(2, time="2026-11-03T00:00:00+00:00"))
    assert found == {1: pytest.approx(2 * 86400.0 / FADE_S), 2: 0.0}
