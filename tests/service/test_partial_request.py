"""The bytes of a request as they arrive."""

from __future__ import annotations

import pytest

from threadcast.service.partial_request import MAX_HEAD_BYTES, PartialRequest, Refusal

POST = b"POST /v1/plans HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"


def request_of(*pieces: bytes) -> PartialRequest:
    made = PartialRequest(0.0, 100)
    for piece in pieces:
        assert made.add(piece) is None
    return made


@pytest.mark.parametrize("cut", range(1, len(POST)))
def test_a_request_is_whole_with_its_last_byte_and_not_before(cut: int) -> None:
    made = request_of(POST[:cut])
    assert not made.complete
    assert made.add(POST[cut:]) is None
    assert made.complete
    assert made.split() == (POST, b"")


def test_what_comes_after_a_request_is_the_next_one() -> None:
    assert request_of(POST + b"GET / HT").split() == (POST, b"GET / HT")


def test_a_request_without_a_length_ends_with_its_head() -> None:
    made = request_of(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert made.complete
    assert made.method == "GET"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ncontent-length:999999999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\ntransfer-encoding : x\r\n\r\n", 411),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES, 431),
        (b"x" * (MAX_HEAD_BYTES + 1), 431),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_there(data: bytes, status: int) -> None:
    refusal = PartialRequest(0.0, 100).add(data)
    assert isinstance(refusal, Refusal)
    assert refusal.status == status


def test_who_waits_to_be_told_to_go_on_is_told_so_once() -> None:
    head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    made = request_of(head)
    assert made.expects_continue()
    assert not made.expects_continue()
    made.add(b"hello")
    assert made.split() == (head.replace(b"Expect: 100-continue\r\n", b"") + b"hello", b"")


def test_a_length_with_zeros_before_it_is_a_length() -> None:
    made = request_of(b"POST / HTTP/1.1\r\nContent-Length: " + b"0" * 30 + b"5\r\n\r\n")
    assert not made.complete
    made.add(b"hello")
    assert made.complete


@pytest.mark.parametrize(
    "after", [b"\nExpect: 100-continue\r\n", POST.replace(b"Host", b"Expect: 100-continue\r\nHost")]
)
def test_only_the_heads_own_expectation_is_taken_out(after: bytes) -> None:
    made = request_of(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(after) + after)
    assert not made.expects_continue()
    assert made.split()[0].endswith(after)
    following = request_of(POST + after)
    assert not following.expects_continue()
    assert following.split() == (POST, after)
