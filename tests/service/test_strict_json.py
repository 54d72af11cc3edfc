"""Bodies mean the same whichever parser reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st

from threadcast.service.strict_json import StrictJson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def read(text: str) -> Any:
    return StrictJson(Flask("test")).loads(text.encode())


@given(value=VALUES, plain=st.booleans())
def test_every_document_is_read_as_it_was_written(value: Any, plain: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=plain)
        text.encode()
    except UnicodeEncodeError:
        return
    assert repr(read(text)) == repr(value)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30])
def test_long_integers_keep_all_their_digits(number: int) -> None:
    assert read(f'{{"a": {number}}}') == {"a": number}
    assert type(read(f"[{number}]")[0]) is int


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e400", '"\\ud800"', "[1,]", "01", "", "\ufeff1", '{"a" 1}'])
def test_what_is_no_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(text)


def test_floats_survive_to_the_last_bit() -> None:
    for value in (0.1, 1 / 3, 5e-324, math.nextafter(1.0, 2.0), 1.7976931348623157e308):
        assert read(json.dumps(value)) == value
