"""What a store keeps when it is pruned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.store import Store, schema
from threadcast.store.pruning import Pruned
from threadcast.store.retention import DAY_S, LEAST_SAMPLES, Retention

Measure = Callable[..., Measurement]
NOW_S = 1_800_000_000.0
MM = Op("mm")
parts = st.lists(
    st.tuples(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40), st.floats(0, NOW_S) | st.just(math.nan)),
    min_size=1, max_size=12,
)  # fmt: skip


@given(parts, st.integers(LEAST_SAMPLES, 60))
def test_the_newest_samples_stay_and_the_others_keep_their_quantiles(
    found: list[tuple[list[float], float]], most: int
) -> None:
    seconds, times_s = [np.array(s) for s, _ in found], [time_s for _, time_s in found]
    kept = Retention(keep_samples=most).kept(seconds, times_s, NOW_S)
    assert sum(map(len, kept)) == min(most, sum(map(len, seconds)))
    order = sorted(range(len(found)), key=lambda i: -1.0 if math.isnan(times_s[i]) else times_s[i])
    places = [(i, k) for i in order for k in range(len(seconds[i]))]
    stays = {(i, k) for i, positions in enumerate(kept) for k in positions}
    assert set(places[-(most // 2) :]) <= stays
    older = places[: -(most // 2)]
    before = np.sort([seconds[i][k] for i, k in older])
    after = np.sort([seconds[i][k] for i, k in older if (i, k) in stays])
    for n, value in enumerate(after):  # the share of older samples up to each is right to half of a sample's share
        low, high = np.searchsorted(before, value, "left"), np.searchsorted(before, value, "right")
        rank = (n + 0.5) * len(before) / len(after)
        assert low - 1 <= rank <= high + 1


@given(parts, st.floats(0.5, 10_000))
def test_what_is_too_old_goes_but_never_the_newest(found: list[tuple[list[float], float]], days: float) -> None:
    seconds, times_s = [np.array(s) for s, _ in found], [time_s for _, time_s in found]
    kept = Retention(keep_days=days).kept(seconds, times_s, NOW_S)
    gone = [i for i, positions in enumerate(kept) if not positions]
    assert all(times_s[i] < NOW_S - days * DAY_S for i in gone)
    assert len(gone) < len(found)
    known = [time_s for time_s in times_s if not math.isnan(time_s)]
    assert not known or max(known) not in [times_s[i] for i in gone if times_s.count(times_s[i]) == 1]
    assert all(len(positions) in (0, len(s)) for positions, s in zip(kept, seconds, strict=True))


def made(machine: Machine, time: str, *seconds: float, threads: int = 1, **more: object) -> Measurement:
    samples = tuple(Sample(s, {"cycles": 10 * s, "faults": None}) for s in seconds)
    return Measurement(MM, machine, Case(threads), samples, {"time": time, **more})


def test_a_pruned_store_answers_as_one_that_was_filled_with_what_is_left(
    store_url: Path | str, machine: Machine, tmp_path: Path, measure: Measure
) -> None:
    old = [made(machine, f"2026-01-{1 + day:02d}", *[1.0 + k / 8 for k in range(8)]) for day in range(20)]
    new = [made(machine, "2026-03-01T00:00:00+00:00", *[2.0] * 8), made(machine, "2020-01-01", 9.0, threads=2)]
    cold = [made(machine, f"2026-02-{1 + day:02d}", *[7.0] * 8, cache="cold") for day in range(3)]
    few = [measure(2)]
    with Store.open(store_url) as store:
        store.add([*old, *new, *cold, *few])
        last = store.last_measurement()
        limits = Retention(keep_samples=16)
        assert store.prune(limits, dry_run=True) == (expected := Pruned(19, 152 + 8, 1))
        assert store.counts().samples == 20 * 8 + 9 + 24 + 3
        assert store.prune(limits) == expected
        assert store.prune(limits).samples == 0
        assert store.last_measurement() == last
        left = store.measurements()
        assert store.check() == []
        assert [m for m in left if m.op != MM] == few
        at_one = [m for m in left if m.case == Case(1) and m.op == MM and "cache" not in m.conditions]
        assert at_one[-1] == new[0]
        older = sorted(s.seconds for m in at_one[:-1] for s in m.samples)
        assert older == [1.0 + k / 8 for k in range(8)]  # one of each octile
        assert all(s.counters == {"cycles": 10 * s.seconds, "faults": None} for m in at_one for s in m.samples)
        assert {m.conditions["time"] for m in at_one} <= {m.conditions["time"] for m in [*old, *new]}
        shown = store.browse.lines_of(MM.key)
        with store._database.read() as connection:
            counted = connection.execute(select(schema.cases.c.samples).order_by(schema.cases.c.samples)).scalars()
            assert list(counted) == [1, 3, 32]
    with Store.open(tmp_path / "anew.sqlite") as store:
        store.add(left)
        assert store.browse.lines_of(MM.key) == shown


def test_old_measurements_go_unless_nothing_newer_is_known_of_the_case(
    store_url: Path | str, machine: Machine, measure: Measure
) -> None:
    first = [made(machine, f"2020-01-{day:02d}", 1.0) for day in range(1, 5)]
    only = [made(machine, "2020-01-01", 2.0, threads=2), made(machine, "2020-01-02", 3.0, threads=2)]
    undated = replace(first[0], conditions={})
    with Store.open(store_url) as store:
        store.add([*only, *first, undated])  # it counts as made when it was stored
        found = store.prune(Retention(keep_days=30))
        assert (found.measurements, found.samples) == (5, 5)
        assert store.measurements() == [only[1], undated]
        store.add([made(machine, "2019-01-01", 5.0)])
        store.prune(Retention(keep_days=30))
        assert len(store.measurements()) == 3  # what was stored last stays, so that numbers only grow


def test_others_store_while_a_store_is_pruned(
    store_url: Path | str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.store.pruning.ROWS_AT_ONCE", 1)
    added = [Measurement(Op(f"op{i}"), machine, Case(1), tuple(map(Sample, range(1, 30)))) for i in range(4)]
    with Store.open(store_url) as store, Store.open(store_url) as other:
        store.add(added)
        write, turns = store._database.write, []

        def then_another(work: Callable[..., object]) -> object:
            done = write(work)
            turns.append(other.add(added[:1]))
            return done

        monkeypatch.setattr(store._database, "write", then_another)
        found = store.prune(Retention(keep_samples=10))
        assert (found.ops, len(turns)) == (4, 4)
        assert other.counts().samples == 4 * 10 + 4 * 29
        assert other.check() == []
