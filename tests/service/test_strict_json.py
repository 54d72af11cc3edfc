"""Bodies mean the same whichever parser reads them."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "1e400", "1" * 250 + "e99", '"\\ud800"', "[1,]", "01", "", "\ufeff1", '{"a" 1}']
)
def test_what_is_no_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a" : 2}', '[{"b": [{"a": 1, "c": 2, "a": 1}]}]', '{"a": 1, "\\u0061": 2}', '{"a": 1, "a": 1e400}',
        '{"a": 1, "a": {"\\u003a": 2}}', '{"a": 123456789012345678901234567890, "a": 1}',
        f'{{"a": 1, "a": {"[" * 99}{"]" * 99}}}',
    ],
)  # fmt: skip
def test_a_member_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"an object has the member 'a' twice|beyond the range"):
        read(text)


@pytest.mark.parametrize("text", ['{"a:": ":", "b": [{"a": "\\u003a"}], ":": {"a": ":"}}', '{"\\":": 1}'])
def test_colons_in_strings_are_no_members(text: str) -> None:
    assert read(text) == json.loads(text)


@pytest.mark.parametrize("depth", [1_100, 1_000_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="recursion limit exceeded"):
        read(f"{'[' * depth}{']' * depth}")


def test_brackets_in_strings_and_beside_each_other_are_no_nesting() -> None:
    text = '["\\ud83d\\ude00", "' + '[{\\"' * 2_000 + '", ' + ", ".join(['{"a": [[]]}'] * 2_000) + "]"
    assert read(text) == json.loads(text)


@pytest.mark.parametrize("digits", [17, 18, 19, 20, 40])
def test_fractions_of_many_digits_are_read_to_the_last_bit(digits: int) -> None:
    text = "0." + "1234567890"[-digits % 10 :] + "1234567890" * (digits // 10)
    assert read(f"[{text}, -{text}, 7{text[1:]}e-3]") == [float(text), -float(text), float(f"7{text[1:]}e-3")]
