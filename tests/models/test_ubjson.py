"""Reading UBJSON: the values of the standard, and nothing else."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core.errors import FormatError
from threadcast.models.ubjson import parse


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"Z", None), (b"T", True), (b"F", False), (b"i\xff", -1), (b"U\xff", 255), (b"I\x01\x00", 256),
        (b"l\x00\x01\x00\x00", 65536), (b"L\x00\x00\x00\x01\x00\x00\x00\x00", 2**32), (b"d\x3f\x80\x00\x00", 1.0),
        (b"D\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0), (b"Ca", "a"), (b"Si\x03abc", "abc"), (b"SL" + b"\x00" * 8, ""),
        (b"[]", []), (b"[i\x01Si\x01a]", [1, "a"]), (b"[#i\x02TF", [True, False]),
        (b"[$S#i\x02i\x01ai\x01b", ["a", "b"]),
        (b"{}", {}), (b"{i\x01aTi\x01bZ}", {"a": True, "b": None}), (b"{#i\x01i\x01aT", {"a": True}),
    ],
)  # fmt: skip
def test_every_type_is_read(data, value):
    assert parse(data) == value


def test_an_array_of_one_type_is_an_array_of_numbers():
    found = parse(b"[$l#U\x02\x00\x00\x00\x01\xff\xff\xff\xff")
    assert found.dtype == ">i4"
    assert found.tolist() == [1, -1]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"X", b"[", b"{i\x01a", b"Si\x05abc", b"S", b"i", b"[$l", b"[$l#i\x05\x00", b"[$l#i\xff", b"TT",
        b"Si\x02\xff\xfe", b"[#Sab", b"{i\x01aTi\x01aF}", b"[" * 100, b"[$Z#L\x7f\xff\xff\xff\xff\xff\xff\xff", b"\xc3",
        b"[$[#l\x00\x0f\xff\xff",
    ],
)  # fmt: skip
def test_everything_else_is_refused(data):
    with pytest.raises(FormatError):
        parse(data)


@given(st.binary(max_size=40))
def test_random_bytes_are_read_or_refused(data):
    with contextlib.suppress(FormatError):
        parse(data)


def test_numbers_are_not_copied():
    data = b"[$d#l\x00\x00\x10\x00" + b"\x00" * 4 * 4096
    assert np.count_nonzero(parse(data)) == 0
