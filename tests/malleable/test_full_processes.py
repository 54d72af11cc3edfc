"""Who listens and may open no more files does not try again and again to accept the same connection."""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.malleable.test_limits import no_file_left
from tests.waiting import eventually
from threadcast.malleable.arbiter import LOOK_S
from threadcast.malleable.lines import line
from threadcast.malleable.process_socket import ProcessSocket

QUESTION = line({"limits": "all"})


def test_an_attached_process_accepts_no_connection_until_it_listens_again(tmp_path: Path) -> None:
    path = tmp_path / "process.sock"
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as asking:
        listening = ProcessSocket(path, selector, lambda question: {"cores": []})

        def handle() -> int:
            ready = selector.select(0)
            for key, _ in ready:
                key.data()
            return len(ready)

        with no_file_left():
            asking.connect(str(path))
            assert handle() == 1
            assert handle() == 0
        listening.listen_again()
        listening.listen_again()
        asking.sendall(QUESTION)
        assert (handle(), handle()) == (1, 1)  # it accepts, and answers
        assert asking.recv(1 << 10) == line({"cores": []})
        listening.close()


def test_an_arbiter_accepts_at_its_next_look(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "could not connect" in record.getMessage()]

    arbitrate()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(60)
        with no_file_left():
            asking.connect(str(tmp_path / "threadcast" / "arbiter.sock"))
            assert eventually(lambda: len(refusals()) >= 3)
        first, _, third = refusals()[:3]
        assert third.created - first.created > LOOK_S
        asking.sendall(line({"who": "all"}))
        assert b"processes" in asking.recv(1 << 16)
