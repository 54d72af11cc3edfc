"""What a store keeps when it is pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.store import Store
from threadcast.store.pruning import Pruned

Measure = Callable[..., Measurement]
MM = Op("mm")


def made(machine: Machine, time: str, *seconds: float, threads: int = 1, **more: object) -> Measurement:
    samples = tuple(Sample(s, {"cycles": 10 * s, "faults": None}) for s in seconds)
    return Measurement(MM, machine, Case(threads), samples, {"time": time, **more})


def test_a_pruned_store_answers_as_one_that_was_filled_with_what_is_left(
    store_url: Path | str, machine: Machine, tmp_path: Path, measure: Measure
) -> None:
    old = [made(machine, f"2020-01-{1 + day:02d}", *[1.0 + k / 8 for k in range(8)]) for day in range(20)]
    new = [made(machine, "2026-03-01T00:00:00+00:00", *[2.0] * 8), made(machine, "2020-01-01", 9.0, threads=2)]
    cold = [made(machine, f"2020-02-{1 + day:02d}", *[7.0] * 8, cache="cold") for day in range(3)]
    few = [measure(2)]
    with Store.open(store_url) as store:
        store.add([*old, *new, *cold, *few])
        last = store.last_measurement()
        assert store.prune(365, dry_run=True) == (expected := Pruned(20 + 2, 160 + 16, 1))
        assert store.counts().samples == 20 * 8 + 9 + 24 + 3
        assert store.prune(365) == expected
        assert store.prune(365).samples == 0
        assert store.last_measurement() == last
        left = store.measurements()
        assert store.check() == []
        assert left == [*new, cold[-1], *few]
        shown = store.browse.lines_of(MM.key)
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
        found = store.prune(30)
        assert (found.measurements, found.samples) == (5, 5)
        assert store.measurements() == [only[1], undated]
        store.add([made(machine, "2019-01-01", 5.0)])
        store.prune(30)
        assert len(store.measurements()) == 3  # what was stored last stays, so that numbers only grow


def test_others_store_while_a_store_is_pruned(
    store_url: Path | str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.store.pruning.ROWS_AT_ONCE", 1)
    added = [
        Measurement(Op(f"op{i}"), machine, Case(1), (Sample(1.0), Sample(2.0)), {"time": f"2020-01-{day:02d}"})
        for i in range(4) for day in range(1, 6)
    ]  # fmt: skip
    with Store.open(store_url) as store, Store.open(store_url) as other:
        store.add(added)
        write, turns = store._database.write, []

        def then_another(work: Callable[..., object]) -> object:
            done = write(work)
            turns.append(other.add(added[:1]))
            return done

        monkeypatch.setattr(store._database, "write", then_another)
        found = store.prune(30)
        assert (found.ops, len(turns)) == (4, 4)
        assert other.counts().samples == 4 * 2 + 4 * 2
        assert other.check() == []
