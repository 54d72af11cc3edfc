"""JSON text of curve tables."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from threadcast.core import Case, CurveTable
from threadcast.core.curve import Floats
from threadcast.core.curve_codec import to_answer
from threadcast.service.curve_text import ROWS, curve_content

FORM, HEAD = "application/json", {"machine": "m", "ops": ["ü"]}

TIMES = st.one_of(st.floats(0, allow_nan=False), st.sampled_from([0.0, 5e-324, 1e-6, 0.1, 1.0, 1e16, 1e21, 1e300]))


@given(arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6), elements=TIMES))
def test_the_text_is_the_tables_own_document_to_the_last_bit(seconds: Floats) -> None:
    cases = tuple(Case(n + 1) for n in range(seconds.shape[1]))
    source = (np.arange(seconds.size) % 4).astype(np.int8).reshape(seconds.shape)
    table = CurveTable(cases, seconds, seconds / 3, seconds, source, 'm"@1')
    assert json.loads(curve_content(FORM, table, machine="m", keys=["ü"])) == {**HEAD, **to_answer(table)}


def test_a_table_of_more_rows_than_are_written_at_once_is_whole() -> None:
    seconds = np.random.default_rng(0).lognormal(-5, 3, (2 * ROWS + 1, 3))
    source = np.random.default_rng(1).integers(0, 4, seconds.shape).astype(np.int8)
    table = CurveTable((Case(1), Case(2), Case(4)), seconds, np.where(seconds > 1, np.inf, seconds), seconds, source)
    assert json.loads(curve_content(FORM, table, machine="m", keys=["ü"])) == {**HEAD, **to_answer(table)}
