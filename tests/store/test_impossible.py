"""Measurements of cases that their machine lacks, in stores that versions filled which took them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from threadcast.core import Machine, Measurement
from threadcast.store import Store
from threadcast.store.browsing import OpFilter
from threadcast.store.impossible import warn_of_impossible
from threadcast.store.pruning import Pruned

Measure = Callable[..., Measurement]


@pytest.fixture
def old(store_url: Path | str, measure: Measure, monkeypatch: pytest.MonkeyPatch) -> Path | str:
    """A store with a good measurement of two ops, and of the first and a third one such that 8 cores lack the case."""
    warn_of_impossible.cache_clear()
    with monkeypatch.context() as patch, Store.open(store_url) as store:
        patch.setattr(Machine, "require", lambda machine, case: None)
        store.add([measure(1), measure(1, threads=9), measure(1, threads=9), measure(2), measure(3, threads=10)])
    return store_url


def test_they_are_left_out_with_a_warning(old: Path | str, measure: Measure, caplog: pytest.LogCaptureFixture) -> None:
    with Store.open(old) as store, caplog.at_level(logging.WARNING, "threadcast"):
        assert store.measurements() == store.measurements() == [measure(1), measure(2)]
        assert [m for batch in store.in_batches(size=1) for m in batch] == [measure(1), measure(2)]
    assert [record.getMessage().count("db prune --impossible") for record in caplog.records] == [1]


def test_check_names_them_and_they_can_be_deleted(old: Path | str, measure: Measure, tmp_path: Path) -> None:
    with Store.open(old) as store, Store.open(tmp_path / "clean.sqlite") as clean:
        clean.add([measure(1), measure(2)])
        first, second = store.check()
        assert f"measurements of {measure(1).op.key} (2) are left out: threads=9 compact exceeds the 8" in first
        assert "threads=10" in second
        assert store.delete_impossible(dry_run=True) == store.delete_impossible() == Pruned(2, 6, 1)
        assert store.check() == [second]  # nothing was stored since
        last = store.last_measurement()
        store.add([measure(4)])
        clean.add([measure(4)])
        assert store.last_measurement() > last
        assert store.delete_impossible() == Pruned(1, 3, 1)
        assert (store.check(), store.delete_impossible()) == ([], Pruned())
        found, wanted = store.counts(), clean.counts()
        assert (found.measurements, found.samples) == (wanted.measurements, wanted.samples)
        assert store.measurements() == clean.measurements()
        here, there = (one.browse.ops(OpFilter(measure(1).machine.fingerprint)) for one in (store, clean))
        assert here == there
