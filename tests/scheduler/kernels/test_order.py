"""The kernels' own order statistics give what a sort gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from threadcast.scheduler.kernels.arrays import copy_to, smallest

values = st.floats(0.0, 3.0) | st.sampled_from([0.0, 1.0, np.inf])


@given(st.lists(values, min_size=1, max_size=40), st.data())
def test_the_smallest_are_those_of_a_sorted_array(found: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(found) - 1))
    room = np.empty(len(found))
    copy_to(room, np.array(found))
    assert smallest(room, k) == sorted(found)[k]
    assert sorted(room.tolist()) == sorted(found)
