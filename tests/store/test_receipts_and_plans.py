"""Receipts of batches, and what is kept by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from threadcast.core import Measurement
from threadcast.core.errors import InvalidInput
from threadcast.store import Store
from threadcast.store.receipts import Receipt

Measure = Callable[..., Measurement]
DAY_S = 86400.0


def test_a_batch_is_stored_with_its_receipt_once(store_url: Path | str, measure: Measure) -> None:
    receipt = Receipt("k", "digest", '{"measurements": 1}')
    with Store.open(store_url) as store:
        assert store.add_once([measure()], receipt, keep_s=DAY_S) is None
        again = Receipt("k", "another", "")
        assert store.add_once([measure(2)], again, keep_s=DAY_S) == receipt
        assert store.measurements() == [measure()]


def test_a_receipt_is_forgotten_after_its_time(
    store_url: Path | str, measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store_url) as store:
        monkeypatch.setattr("threadcast.store.store.time.time", lambda: 1e9)
        store.add_once([measure()], Receipt("k"), keep_s=DAY_S)
        monkeypatch.setattr("threadcast.store.store.time.time", lambda: 1e9 + DAY_S - 1)
        assert store.add_once([measure()], Receipt("k"), keep_s=DAY_S) == Receipt("k")
        monkeypatch.setattr("threadcast.store.store.time.time", lambda: 1e9 + DAY_S + 1)
        assert store.add_once([measure()], Receipt("k"), keep_s=DAY_S) is None


def test_the_last_measurement_moves_with_every_batch_of_any_connection(store_url: Path | str, measure: Measure) -> None:
    with Store.open(store_url) as store, Store.open(store_url) as other:
        assert store.last_measurement() == 0
        other.add([measure(1)])
        first = store.last_measurement()
        other.add([measure(2), measure(3)])
        assert store.last_measurement() > first > 0
        assert store.ops_measured_since(first) == {measure(2).op.key, measure(3).op.key}
        assert store.ops_measured_since(store.last_measurement()) == set()


@pytest.mark.system
def test_text_that_postgresql_has_no_place_for_is_the_senders_fault(postgres: str) -> None:
    from tests.postgres import fresh_database

    with Store.open(fresh_database(postgres)) as store, pytest.raises(InvalidInput, match="NUL"):
        store.ops(kinds=["a\x00b"])


def test_contexts_are_kept_by_name_and_those_added_longest_ago_go(
    store_url: Path | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(store_url) as store:
        for moment, name in enumerate(["c0", "c1", "c0", "c2"]):
            monkeypatch.setattr("threadcast.store.store.time.time", lambda n=moment: 1e9 + n)
            store.add_context(name, name.encode(), most=2)
        assert [store.context(name) for name in ("c0", "c1", "c2")] == [b"c0", None, b"c2"]
