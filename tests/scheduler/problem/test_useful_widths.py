"""Useful widths, compressed rows and hardware threads: what the parts of the scheduler share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.scheduler.problem import Launch
from threadcast.scheduler.problem.compressed_rows import CompressedRows
from threadcast.scheduler.problem.hardware_threads import any_shares_cores, hardware_threads, may_share_cores
from threadcast.scheduler.problem.useful_widths import useful_widths

rows_of_seconds = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf]), min_size=4, max_size=4)


@given(table=st.lists(rows_of_seconds, min_size=1, max_size=5))
def test_a_width_is_useful_where_every_narrower_one_takes_longer(table: list[list[float]]) -> None:
    useful = useful_widths(np.array(table)).tolist()
    for row, found in zip(table, useful):
        assert found == [s < math.inf and all(s < narrower for narrower in row[:i]) for i, s in enumerate(row)]


@given(lists=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6))
def test_compressed_rows_hold_the_lists(lists: list[list[int]]) -> None:
    rows = CompressedRows.of(lists)
    assert [rows.indices[rows.indptr[i] : rows.indptr[i + 1]].tolist() for i in range(len(lists))] == lists


@pytest.mark.parametrize(
    ("threads", "first", "numbers", "shares"),
    [(2, 0, [0], False), (2, 1, [1], True), (3, 0, [0, 1], True), (4, 2, [2, 3], True)],
)
def test_an_op_on_two_cores_uses_as_many_hardware_threads_of_each(
    threads: int, first: int, numbers: list[int], shares: bool
) -> None:
    launch = Launch(0, (4, 7), threads, first)
    assert list(hardware_threads(launch)) == numbers
    assert may_share_cores(launch) == any_shares_cores([launch]) == shares
