"""What an arbiter and a process are sent is read as documented, or refused with the place that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import FormatError
from threadcast.malleable.lines import LONGEST, Lines, line
from threadcast.malleable.messages import (
    Bounds,
    Confirm,
    Join,
    asks_limits,
    order_of,
    requests_of,
    resize_of,
)  # fmt: skip

CORES = ((0, 4), (1, 5))
BOUNDS = Bounds(1, 3, CORES)
JOIN = {"name": "train.py", "weight": 2.0, "holds": CORES, "progress": {"1": 3.5, "2": 6.0}}
REQUESTS: list[tuple[dict[str, Any], Any]] = [
    ({"join": {**JOIN, **BOUNDS.to_json()}}, Join("train.py", 2.0, BOUNDS, CORES, {1: 3.5, 2: 6.0})),
    ({"join": {"holds": ()}}, Join()),
    ({"holds": CORES, "order": 7}, Confirm(7, CORES)),
    ({"bounds": BOUNDS.to_json()}, BOUNDS),
    ({"bounds": Bounds().to_json()}, Bounds()),
    ({"progress": {"1": 10.0, "16": 17.5}}, {1: 10.0, 16: 17.5}),
    ({"steps": 120}, 120.0),
    ({"learning": "training of Net: measuring"}, "training of Net: measuring"),
    ({"who": "all"}, True),
]
MESSAGES = [json.loads(line(message)) for message, _ in REQUESTS]
OTHERS: list[Any] = [{"resize": 2}, {"resize": [[0], [1]]}, {"limits": "all"}, {"cores": [[0], [1]], "order": 7}]
"""What is asked of a process, by the arbiter and by others."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """The document with another value at one place."""
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@pytest.mark.parametrize(
    ("message", "meant"), REQUESTS, ids=lambda part: next(iter(part), "") if isinstance(part, dict) else ""
)
def test_what_a_process_sends_is_read_as_it_was_meant(message: dict[str, Any], meant: Any) -> None:
    (read,) = Lines().feed(line(message))
    assert requests_of(read) == {next(iter(message)): meant}


def test_what_an_arbiter_sends_is_read_as_it_was_meant() -> None:
    assert order_of(json.loads(line({"cores": CORES, "order": 7}))) == Confirm(7, CORES)
    assert asks_limits({"limits": "all"})
    assert [resize_of({"resize": asked}) for asked in (4, None, [[0], [1]])] == [4, None, ((0,), (1,))]


def test_bounds_leave_out_what_they_do_not_limit() -> None:
    assert BOUNDS.to_json() == {"least": 1, "most": 3, "may": CORES}
    assert Bounds().to_json() == {"least": 1}


def test_one_message_may_say_several_things() -> None:
    both = {"steps": 3, "holds": [[0]], "order": 2, "unknown": 1}
    assert list(requests_of(both).items()) == [("holds", Confirm(2, ((0,),))), ("steps", 3.0)]
    assert requests_of({"unknown": 1}) == {}


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"join": 3}, "/join"), ({"join": {}}, "/join"), ({"join": {"holds": [[True]]}}, "/join/holds"),
        ({"join": {"holds": [], "name": 3}}, "/join/name"), ({"join": {"holds": [], "weight": None}}, "/join/weight"),
        ({"join": {"holds": [], "weight": 0}}, "/join"), ({"join": {"holds": [], "most": 1.5}}, "/join/most"),
        ({"join": {"holds": [], "least": 3, "most": 2}}, "/join"), ({"join": {"holds": [], "may": 3}}, "/join/may"),
        ({"join": {"holds": [], "progress": {"1": "2"}}}, "/join/progress/1"),
        ({"join": {"holds": [], "progress": {"0": 2}}}, "/join/progress"),
        ({"progress": {"1": 1e-300}}, "/progress/1"), ({"progress": {"1": 1e16}}, "/progress/1"),
        ({"bounds": {"most": 0}}, "/bounds"), ({"progress": [1]}, "/progress"), ({"steps": True}, "/steps"),
        ({"steps": 1e16}, "/steps"), ({"holds": []}, "/order"), ({"holds": {}, "order": 1}, "/holds"),
        ({"who": ["all"]}, "/who"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_names_the_place(wrong: dict[str, Any], pointer: str) -> None:
    with pytest.raises(FormatError) as refusal:
        requests_of(wrong)
    assert refusal.value.pointer == pointer


@given(st.data())
def test_any_json_at_any_place_is_read_or_refused(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES + OTHERS))
    path = data.draw(st.sampled_from([path for path in places(message) if path]))
    wrong = replaced(message, path, data.draw(JSON))
    for read in (requests_of, order_of, asks_limits, resize_of):
        with suppress(FormatError):
            read(wrong)


def test_names_are_cut_and_hold_nothing_that_a_terminal_acts_on() -> None:
    joined = requests_of({"join": {"holds": [], "name": "a\x1b[2J\n\ud800" + "ü" * 500}})["join"]
    assert isinstance(joined, Join)
    assert joined.name == "a\ufffd[2J\ufffd\ufffd" + "ü" * 193


def test_lines_are_objects_of_bounded_length() -> None:
    lines = Lines()
    assert list(lines.feed(b'{"a": 1}\n{"b"')) == [{"a": 1}]
    assert list(lines.feed(b": 2}\n")) == [{"b": 2}]
    for wrong in (b"nonsense\n", b"[]\n", b'"x"\n', b"\xff\n", b'{"a": 1, "a": 2}\n', b"[" * 60_000 + b"\n"):
        with pytest.raises(FormatError):
            list(Lines().feed(wrong))
    with pytest.raises(FormatError, match="a line of more than"):
        list(Lines().feed(b"x" * (LONGEST + 1)))
