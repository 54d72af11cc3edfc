"""Copies of stored measurements are known; repetitions, which look alike, are not."""

from __future__ import annotations

from pathlib import Path

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.store import Store
from threadcast.store.known import unknown

MACHINE = Machine.uniform("m", 2)


def made(seconds: float, **conditions: object) -> Measurement:
    return Measurement(Op("mm"), MACHINE, Case(1), (Sample(seconds),), conditions)


def test_each_stored_measurement_is_known_once_and_what_has_no_conditions_never(store_path: Path) -> None:
    dated, bare = made(1.0, time="2026-01-01"), made(1.0)
    with Store.open(store_path) as store:
        store.add([dated, bare])
        later, slower = made(1.0, time="2026-01-02"), made(2.0, time="2026-01-01")
        assert unknown(store, [slower, later, dated, dated, bare]) == [slower, later, dated, bare]
