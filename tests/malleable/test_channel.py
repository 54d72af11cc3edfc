"""Messages go both ways, and nobody waits for a side that does not read."""

from __future__ import annotations

import socket

import pytest

from threadcast.malleable.channel import Channel


def test_messages_arrive_as_they_were_sent_and_the_end_is_seen() -> None:
    here, there = map(Channel, socket.socketpair())
    assert list(here.receive()) == []
    there.send({"a": 1})
    there.send({"b": [2]})
    assert list(here.receive()) == [{"a": 1}, {"b": [2]}]
    there.close()
    with pytest.raises(ConnectionResetError):
        list(here.receive())
    with pytest.raises(OSError, match=r"[Bb]roken pipe"):
        here.send({"a": 1})
    here.close()


def test_a_long_message_goes_in_parts_and_a_second_one_is_refused_meanwhile() -> None:
    one, other = socket.socketpair()
    here = Channel(one)
    here.send({"long": "x" * (1 << 20)})
    assert here.has_unsent
    with pytest.raises(BlockingIOError, match="does not read"):
        here.send({"more": 1})
    got = 0
    while here.has_unsent:
        got += len(other.recv(1 << 20))
        here.flush()
    here.send({"more": 1})
    here.close()
    other.close()
    assert got > 0
