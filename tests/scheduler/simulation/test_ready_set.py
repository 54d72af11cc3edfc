"""The queue of ready ops, against a list that is sorted anew each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.scheduler.simulation.ready_set import ReadyQueue


@given(st.data())
def test_it_holds_what_was_added_and_not_removed_in_order(data: st.DataObject) -> None:
    ranked = data.draw(st.booleans())
    rank = data.draw(st.permutations(range(20)))
    queue = ReadyQueue(rank if ranked else None)
    expected: list[int] = []
    for op in data.draw(st.permutations(range(20))):
        queue.add(op)
        expected.append(op)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(expected))
            queue.remove(gone)
            expected.remove(gone)
            assert gone not in queue
        if ranked:
            expected.sort(key=rank.__getitem__)
        assert list(queue) == expected
        assert len(queue) == len(expected)
        assert all(op in queue for op in expected)
        assert queue[:3] == expected[:3]
        assert not expected or queue[0] == expected[0]


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        ReadyQueue().remove(3)
