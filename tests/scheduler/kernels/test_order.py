"""The kernels' own order statistics and heap give what NumPy's sort and Python's `heapq` give."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from threadcast.scheduler.kernels.arrays import copy_to, smallest
from threadcast.scheduler.kernels.gain_heap import GainHeap, add, take_first

values = st.floats(0.0, 3.0) | st.sampled_from([0.0, 1.0, np.inf])


@given(st.lists(values, min_size=1, max_size=40), st.data())
def test_the_smallest_are_those_of_a_sorted_array(found: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(found) - 1))
    room = np.empty(len(found))
    copy_to(room, np.array(found))
    assert smallest(room, k) == sorted(found)[k]
    assert sorted(room.tolist()) == sorted(found)


@given(st.lists(st.sampled_from([-3.0, -2.0, -1.0]) | st.none(), max_size=60))
def test_ops_leave_the_heap_by_gain_then_number(steps: list[float | None]) -> None:
    """A number is the gain of the next op, None takes the first."""
    heap = GainHeap(np.empty(60), np.empty(60, dtype=np.int64), np.zeros(1, dtype=np.int64))
    expected: list[tuple[float, int]] = []
    for op, gain in enumerate(steps):
        if gain is not None:
            add(heap, gain, 60 - op)
            heapq.heappush(expected, (gain, 60 - op))
        elif expected:
            assert take_first(heap) == heapq.heappop(expected)[1]
    assert [take_first(heap) for _ in expected] == [op for _, op in sorted(expected)]
