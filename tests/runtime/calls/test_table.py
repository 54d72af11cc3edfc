"""Kinds of calls have what runs them, as many as fit; those used least recently make room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from threadcast.runtime.calls import table as call_table
from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind, kind_of
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.tuner.tuning import Tuning


class Sized(Tuning):
    """An entry of so many bytes, without anything to run."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes, self.closed = size_bytes, False

    @property
    def size_bytes(self) -> int:
        return self._bytes

    @property
    def captured(self) -> Any:
        return SimpleNamespace(reads=None)

    def close(self) -> None:
        self.closed = True


def kind(number: int) -> CallKind:
    return CallKind(number, (), (), torch.float32)


def filled(*sizes: int, most_bytes: int) -> CallTable:
    """A table to which entries of these sizes were added, as the kinds 0, 1, 2 and so on."""
    table = CallTable(most_bytes)
    for number, size in enumerate(sizes):
        table.add(kind(number), Sized(size))
    return table


def test_entries_are_found_again_in_the_order_of_first_use() -> None:
    table = filled(1, 2, 3, most_bytes=6)
    table.add(kind(9), Fallback("hooks"))
    assert table.find(kind(9)) == Fallback("hooks")
    assert [cast("Sized", one).size_bytes for one in table.tunings] == [1, 2, 3]
    assert table.find(kind(1)) is table.find(kind(1)) is table.tunings[1]
    assert table.find(kind(99)) is None


def test_the_one_used_least_recently_makes_room() -> None:
    table = filled(3, 3, 3, most_bytes=9)
    first, second, third = table.tunings
    table.find(kind(0))
    table.add(kind(3), Sized(3))
    assert (cast("Sized", second).closed, table.find(kind(1))) == (True, None)
    assert table.find(kind(0)) is first
    table.add(kind(4), Sized(6))
    assert cast("Sized", third).closed
    assert [number for number in range(5) if table.find(kind(number)) is not None] == [0, 4]


def test_an_entry_that_is_too_large_alone_stays() -> None:
    table = filled(3, 100, most_bytes=9)
    assert [number for number in range(2) if table.find(kind(number)) is not None] == [1]


def test_the_number_of_kinds_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_table, "MOST_KINDS", 3)
    assert len(filled(0, 0, 0, 0, 0, most_bytes=9)) == 3


def test_a_closed_table_is_empty() -> None:
    table = filled(1, 2, most_bytes=9)
    entries = table.tunings
    table.close()
    assert all(cast("Sized", one).closed for one in entries)
    assert len(table) == 0
    assert table.find(kind(0)) is None


def test_calls_with_parts_of_one_array_are_of_another_kind_where_these_overlap() -> None:
    def kind_with(*parts: Any) -> CallKind:
        return kind_of(list(map(torch.from_numpy, parts)), None, frozenset(), ())

    array = np.arange(6.0)
    apart = kind_with(array[:3], array[3:])
    assert kind_with(np.arange(3.0), np.arange(3.0)) == apart
    assert kind_with(array[:3], array[2:5]) == kind_with(array[2:5], array[1:4]) != apart


FOLLOWS, STAYS, LEFT = SimpleNamespace(follows=True), SimpleNamespace(follows=False), Fallback("too short", short=True)
MEANWHILE = "PyTorch, until all are measured anew"


@pytest.mark.parametrize(
    ("found", "others", "more", "unchanged", "runs"),
    [
        *((LEFT, (), more, unchanged, LEFT) for more in (False, True) for unchanged in (False, True)),
        *((FOLLOWS, (), False, unchanged, FOLLOWS) for unchanged in (False, True)),
        (FOLLOWS, (), True, False, FOLLOWS),
        (FOLLOWS, (), True, True, None),
        *((found, (), False, False, MEANWHILE) for found in (None, STAYS)),
        *((found, (), False, True, None) for found in (None, STAYS)),
        *((found, (FOLLOWS,), False, True, MEANWHILE) for found in (None, STAYS)),
        *((found, (FOLLOWS,), True, True, None) for found in (None, STAYS)),
    ],
)
def test_on_other_cores_what_follows_them_runs_calls_or_pytorch_does(
    found: Any, others: tuple[Any, ...], more: bool, unchanged: bool, runs: Any
) -> None:
    """On more cores or fewer, which have been the same for long or not; None: all is to be measured anew."""
    cores: Any = SimpleNamespace(has_more=more, unchanged=unchanged)
    table: Any = SimpleNamespace(tunings=[*others, *([found] if hasattr(found, "follows") else [])])
    now = CallTable.on_other_cores(table, found, cores)
    if runs is MEANWHILE:
        assert isinstance(now, Fallback)
        assert "other cores" in now.reason
    else:
        assert now is runs
