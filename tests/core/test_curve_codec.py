"""The forms of a curve table, and what is refused on reading."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import THREE, curves
from threadcast.core import Case, CurveTable
from threadcast.core.curve_codec import from_answer, from_codes, to_answer, to_codes
from threadcast.core.curve_table import ARRAYS
from threadcast.core.errors import FormatError

TABLES = st.lists(curves(THREE), min_size=1, max_size=4).map(lambda some: CurveTable.of(some, model="m@1"))
PARTLY = np.array([[1.0, np.inf]])
PARTLY_OFFERED = CurveTable((Case(1), Case(2)), PARTLY, PARTLY, PARTLY, np.zeros((1, 2), dtype=np.int8), "file")


def assert_same(one: CurveTable, other: CurveTable) -> None:
    assert (one.cases, one.model) == (other.cases, other.model)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


@given(TABLES)
def test_an_answer_names_cases_and_sources_and_is_read_back(table):
    document = json.loads(json.dumps(to_answer(table), allow_nan=False))
    assert list(document) == ["cases", "seconds", "low", "high", "source", "model"]
    assert document["cases"][2] == {"threads": 4, "affinity": "compact"}
    assert document["source"][0] == [source.value for source in table[0].source]
    assert_same(from_answer(document, cases=THREE, rows=len(table)), table)


@given(TABLES)
def test_codes_are_read_back(table):
    assert_same(from_codes(json.loads(json.dumps(to_codes(table)))), table)


WRONG = {
    "ragged": {"seconds": [[1.0, 2.0], [1.0]]},
    "text": {"low": [["a", "b"]]},
    "too few": {"high": [[1.0]]},
    "absent": {"seconds": None},
    "negative": {"low": [[-1.0, 1.0]]},
    "interval": {"low": [[3.0, 3.0]]},
    "no source": {"source": None},
    "unknown source": {"source": [["guessed", "learned"]]},
    "few sources": {"source": [["learned"]]},
}


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG.keys())
def test_an_answer_that_is_not_one_is_refused_with_a_pointer(changed):
    numbers = [[1.0, 2.0]]
    document = {"seconds": numbers, "low": numbers, "high": numbers, "source": [["learned"] * 2], "model": "m@1"}
    assert len(from_answer(document, cases=THREE[:2], rows=1)) == 1
    with pytest.raises(FormatError) as caught:
        from_answer({**document, **changed}, cases=THREE[:2], rows=1)
    assert caught.value.pointer in {f"/{name}" for name in ("seconds", *changed)}
