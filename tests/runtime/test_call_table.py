"""A bounded number of kinds of calls have what runs them; a further kind that stays takes the place of the oldest."""

from __future__ import annotations

import pytest
import torch

from threadcast.runtime.call_kinds import CallKind
from threadcast.runtime.call_table import CALLS_IN_A_ROW, MAX_SIGNATURES, CallTable
from threadcast.runtime.fallback import Fallback


def kind(number: int) -> CallKind:
    return CallKind(number, (), (), torch.float32)


@pytest.fixture
def full() -> CallTable:
    """A table with an entry for each of the kinds 0, 1, 2 and so on, used in this order."""
    table = CallTable()
    for number in range(MAX_SIGNATURES):
        assert table.make_room(kind(number))
        table.add(kind(number), Fallback(str(number)))
    return table


def test_entries_are_found_again_in_the_order_of_first_use(full: CallTable) -> None:
    assert full.find(kind(1)) == full.find(kind(1)) == Fallback("1")
    assert full.find(kind(99)) is None
    assert list(full) == [Fallback(str(number)) for number in range(MAX_SIGNATURES)]
    assert full.tunings == []


def test_a_further_kind_that_stays_drops_the_one_used_least_recently(full: CallTable) -> None:
    full.find(kind(0))
    assert [full.make_room(kind(99)) for _ in range(CALLS_IN_A_ROW)] == [False] * (CALLS_IN_A_ROW - 1) + [True]
    assert full.find(kind(1)) is None
    full.add(kind(99), Fallback("99"))
    assert full.find(kind(99)) == Fallback("99")
    assert full.find(kind(0)) == Fallback("0")


def test_calls_of_another_kind_in_between_begin_the_count_anew(full: CallTable) -> None:
    for _ in range(3):
        assert not any(full.make_room(kind(99)) for _ in range(CALLS_IN_A_ROW - 1))
        full.find(kind(0))
    for _ in range(3):
        assert not any(full.make_room(kind(99)) for _ in range(CALLS_IN_A_ROW - 1))
        assert not full.make_room(kind(98))


def test_a_closed_table_is_empty_and_has_room(full: CallTable) -> None:
    full.close()
    assert full.find(kind(0)) is None
    assert full.kinds == []
    assert full.make_room(kind(0))
