"""Whatever comes over the wire, a table comes by the deadline, and the error says what was wrong."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, answer_of, assert_same, local, open_sockets
from threadcast.core.errors import ServiceError, ServiceUnavailable
from threadcast.prediction.questions import Questions
from threadcast.prediction.remote import FALLBACK_MARK, RemotePredictor

CONTENT = json.dumps(answer_of(local(), json.loads(Questions(MACHINE, None).request(OPS).body))).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TWO_LENGTHS = b"Content-Length: 3\r\nContent-Length: 4\r\n"


@contextlib.contextmanager
def wire(answer: bytes) -> Iterator[str]:
    """A server that answers every request with these bytes and then hangs up."""

    def run() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # the client hangs up, as it may
                if not connection.recv(1 << 20):
                    continue
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(PATIENT_S)
                while connection.recv(1 << 16):  # hanging up on unread bytes would take back what was sent
                    pass
            if over.is_set():
                return

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            with socket.create_connection(listener.getsockname()) as last:
                last.sendall(b"end")
            thread.join()


def asked(answer: bytes) -> RemotePredictor:
    with wire(answer) as url:
        remote = RemotePredictor(url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3, version="spare@7"))
        table = remote.curves(OPS)
    if table.model.endswith(FALLBACK_MARK):
        assert_same(table, local(0.3).curves(OPS))
    else:
        assert_same(table, local().curves(OPS))
    return remote


SOUND = {
    "with its length": HEAD + b"Content-Length: %d\r\n\r\n" % len(CONTENT) + CONTENT,
    "until the connection ends": HEAD + b"\r\n" + CONTENT,
    "in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(CONTENT) + CONTENT + b"\r\n0\r\n\r\n",
    "packed in nothing": HEAD + b"Content-Encoding: identity\r\n\r\n" + CONTENT,
    "of a type with parameters": HEAD.replace(b"json", b"JSON; charset=utf-8") + b"\r\n" + CONTENT,
    "after a hundred interim ones": b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + HEAD + b"\r\n" + CONTENT,
}


@pytest.mark.parametrize("answer", SOUND.values(), ids=SOUND.keys())
def test_a_sound_answer_is_taken(answer: bytes) -> None:
    assert asked(answer).status.source_of_curves == "service"


UNSOUND: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "broke off"),
    "no HTTP": (lambda: b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "broke off"),
    "an endless status line": (lambda: b"HTTP/1.1 200 " + b"O" * 100_000, "broke off"),
    "cut off in the headers": (lambda: HEAD[:-20], "of no type"),
    "cut off in the body": (lambda: SOUND["with its length"][:-10], "broke off"),
    "cut off in a chunk": (lambda: SOUND["in chunks"][:-30], "broke off"),
    "a chunk of no size": (lambda: SOUND["in chunks"].replace(b"chunked\r\n\r\n", b"chunked\r\n\r\n-"), "broke off"),
    "two lengths": (lambda: HEAD + TWO_LENGTHS + b"\r\nabcd", "broke off"),
    "two lengths and the end": (lambda: HEAD + b"Connection: close\r\n" + TWO_LENGTHS + b"\r\nabcd", "broke off"),
    "packed": (lambda: HEAD + b"Content-Encoding: gzip\r\n\r\n" + CONTENT, "'gzip', which was not asked for"),
    "too long": (lambda: HEAD + b"\r\n" + CONTENT + b" " * 1_000_000, "longer than"),
    "a page": (lambda: b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + CONTENT, "text/html, not application"),
    "of no type": (
        lambda: b"HTTP/1.1 200 OK\r\n\r\n" + CONTENT,
        "of no type, not application/vnd.apache.arrow.stream or application/json",
    ),
    "an event stream": (lambda: HEAD.replace(b"application/json", b"text/event-stream") + b"\r\n", "event-stream"),
    "a redirect to itself": (lambda: b"HTTP/1.1 308 Moved\r\nLocation: /v1/predictions\r\n\r\n", "answered 308"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "why"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_answer_is_refused_and_the_fallback_answers(make: Callable[[], bytes], why: str) -> None:
    before = open_sockets()
    remote = asked(make())
    assert open_sockets() == before
    assert remote.status.source_of_curves == "fallback"
    assert isinstance(remote.status.last_error, ServiceError)
    assert why in str(remote.status.last_error)


def test_a_service_that_dies_in_the_middle_of_an_answer_is_asked_again() -> None:
    with wire(SOUND["with its length"][:-10]) as url:
        remote = RemotePredictor(url, MACHINE, deadline_s=PATIENT_S, last_resort=False)
        with pytest.raises(ServiceUnavailable):
            remote.curves(OPS)
        with pytest.raises(ServiceUnavailable, match="after 3 failures"):
            remote.curves(OPS)
