"""Reading members with errors that point, and writing files whole."""

from __future__ import annotations

import os

import pytest

from threadcast.core.errors import FormatError
from threadcast.core.json_reading import check_schema, finite, member, number, parse, read_json
from threadcast.core.json_writing import write_json


@pytest.mark.parametrize(
    ("document", "kind", "message"),
    [
        ([], str, "must be an object"),
        ({}, str, "'x' is missing; it must be a string"),
        ({"x": 1}, str, "x must be a string, got 1"),
        ({"x": True}, int, "x must be an integer, got True"),
        ({"x": 1}, bool, "x must be a boolean, got 1"),
        ({"x": None}, list, "x must be an array, got None"),
        ({"x": "a" * 999}, dict, r"x must be an object, got 'a+\.\.\.$"),
    ],
)
def test_a_member_of_the_wrong_kind_is_named(document, kind, message):
    with pytest.raises(FormatError, match=message):
        member(document, "x", kind)


def test_a_default_stands_for_a_missing_member_only():
    assert member({}, "x", int, default=3) == 3
    assert number({}, "x", default=3) == 3.0
    with pytest.raises(FormatError):
        member({"x": None}, "x", int, default=3)
    with pytest.raises(FormatError):
        number({"x": None}, "x", default=3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400), True, "1", None, [1]])
def test_what_is_no_finite_number_is_refused(value):
    with pytest.raises(FormatError, match="must be a finite number"):
        finite(value, pointer="/x")


def test_a_number_below_its_minimum_is_refused():
    assert finite(0, pointer="/x", minimum=0.0) == 0.0
    with pytest.raises(FormatError, match="must be at least 0, got -1"):
        finite(-1, pointer="/x", minimum=0.0)


def test_an_unknown_schema_is_refused_with_the_expected_one():
    check_schema({"schema": "a/1"}, "a/1")
    with pytest.raises(FormatError, match="schema is 'a/2', expected 'a/1'"):
        check_schema({"schema": "a/2"}, "a/1")


def test_a_written_file_replaces_the_old_one_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": [1] * 1000})
    write_json(path, {"new": 1.5})
    assert parse(path.read_bytes(), what="a") == {"new": 1.5}
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("document", [{"x": float("nan")}, {"x": object()}])
def test_a_document_that_is_not_json_leaves_the_old_file(tmp_path, document):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(path, document)
    assert parse(path.read_bytes(), what="a") == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_error_in_a_file_names_the_file_and_keeps_its_pointer(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"x": 1}')
    assert read_json(path, lambda document: document["x"]) == 1
    with pytest.raises(FormatError, match=r"x must be a string, got 1 \(in .*a\.json\)") as raised:
        read_json(path, lambda document: member(document, "x", str))
    assert raised.value.pointer == "/x"
