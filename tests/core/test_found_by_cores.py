"""A cache by cores is bounded by the core ids that it holds."""

from __future__ import annotations

import pytest

from threadcast.core import found_by_cores
from threadcast.core.found_by_cores import ENTRY, FoundByCores


def test_an_entry_counts_as_the_core_ids_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by_cores, "MOST", 10 * (ENTRY + 2))
    found: FoundByCores[tuple[int, ...], int] = FoundByCores()
    for core in range(10):
        assert found.keep((core, core + 1), core, ids=2) == core
    assert [found.get((core, core + 1)) for core in range(10)] == list(range(10))
    assert found.keep((11,), 11, ids=1) == 11
    assert dict(found) == {(11,): 11}, "it was emptied"
    for core in range(9):
        found.keep((core, core + 1), core, ids=2)
    assert len(found) == 10, "what was dropped no longer counts"


def test_an_entry_larger_than_the_cache_is_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by_cores, "MOST", ENTRY + 4)
    found: FoundByCores[str, tuple[int, ...]] = FoundByCores()
    for name in ("one", "other"):
        found.keep(name, (0,) * 5, ids=5)
        assert list(found) == [name]
