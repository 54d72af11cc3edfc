"""Whatever the service or the network does, a table comes by the deadline or the error says why."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.clock import Clock
from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, SerialShare, Service, assert_same, local
from threadcast.core import Case, Curve, Machine, Measurement, Op
from threadcast.core.errors import DeadlineExceeded, InvalidInput, ModelError, ServiceError, ServiceUnavailable
from threadcast.prediction.fallback import ROOFLINE
from threadcast.prediction.predictor import LocalPredictor
from threadcast.prediction.remote import FALLBACK_MARK, FALLBACK_SHARE, RemotePredictor
from threadcast.prediction.versioned_curves import VersionedCurves


def _changed(**members: Any) -> Callable[[bytes], bytes]:
    return lambda content: json.dumps({**json.loads(content), **members}).encode()


def _points(value: Any) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        document = json.loads(content)
        document["seconds"][1][2] = value
        return json.dumps(document).encode()

    return change


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "html": lambda content: b"<html>It works!</html>",
    "cut off": lambda content: content[:-10],
    "not utf-8": lambda content: b"\xff" + content,
    "a number": lambda content: b"7",
    "deeply nested": lambda content: b"[" * 50_000,
    "nan": _points(math.nan),
    "infinite": _points(math.inf),
    "overflowing": lambda content: content.replace(b'"low": [[', b'"low": [[1e999, ', 1),
    "negative": _points(-1.0),
    "text": _points("0.5"),
    "null": _points(None),
    "nested point": _points([0.5]),
    "huge integer": _points(10**400),
    "outside its interval": _points(1e6),
    "no model": _changed(model=None),
    "endless model name": _changed(model="x" * 10_000),
    "another machine": _changed(machine="elsewhere-4c-00000000"),
    "other ops": _changed(ops=["a", "b", "c"]),
    "other cases": _changed(cases=[{"threads": n, "affinity": "compact"} for n in (4, 3, 2, 1)]),
    "too few rows": _changed(seconds=[[1.0] * 4]),
    "ragged": _changed(seconds=[[1.0] * 4, [1.0] * 3, [1.0] * 4]),
    "unknown source": _changed(source=[["guessed"] * 4] * 3),
    "ragged source": _changed(source=[["learned"] * 4, ["learned"], ["learned"] * 4]),
    "no source": _changed(source=5),
    "another type of number": lambda content: content.replace(b'"seconds": [[', b'"seconds": [[true, ', 1),
    "too large": lambda content: content + b" " * 1_000_000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_and_the_fallback_answers(service: Service, garbage: Callable[[bytes], bytes]) -> None:
    service.answer = garbage
    with pytest.raises(ServiceError):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False).curves(OPS)
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3, version="spare@7"))
    table = remote.curves(OPS)
    assert table.model == "spare@7" + FALLBACK_MARK
    assert_same(table, local(0.3).curves(OPS))
    assert remote.status.source_of_curves == "fallback"
    assert isinstance(remote.status.last_error, ServiceError)


@pytest.mark.parametrize("status", [201, 302, 304, 404, 412, 429, 500])
def test_a_status_other_than_200_is_refused(service: Service, status: int) -> None:
    service.status = status
    with pytest.raises(ServiceError, match=str(status)):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False).curves(OPS)


def test_the_service_is_asked_again_after_a_fallback(service: Service) -> None:
    service.status = 500
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3))
    remote.curves(OPS)
    service.status = 200
    assert_same(remote.curves(OPS), local().curves(OPS))
    assert remote.status.source_of_curves == "service"
    assert remote.status.last_error is None


def test_no_service_at_all_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for host in (address, "threadcast.invalid:1"):
        with pytest.raises(ServiceUnavailable):
            RemotePredictor(f"http://{host}", MACHINE, deadline_s=PATIENT_S, last_resort=False).curves(OPS)


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A TCP server that hands its one connection to `serve`, whose event says that the test is over."""
    over = threading.Event()

    def run() -> None:
        with contextlib.suppress(OSError):  # the client hangs up, as it should, or was too late to come
            connection, _ = listener.accept()
            with connection:
                serve(connection, over)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _trickle(head: bytes, more: bytes = b"x") -> Callable[[socket.socket, threading.Event], None]:
    """Send `head`, then `more` every 10 ms for ever: no single read ever waits long."""

    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(0.01):
            connection.sendall(more)

    return serve


def _silence(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


SLOW = {
    "silence": ("http", _silence),
    "trickling status line": ("http", _trickle(b"HTTP/1.1 200 ")),
    "trickling headers": ("http", _trickle(b"HTTP/1.1 200 OK\r\nX-Long: ")),
    "trickling body": ("http", _trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")),
    "trickling body without length": ("http", _trickle(b"HTTP/1.1 200 OK\r\n\r\n")),
    "interim answers": ("http", _trickle(b"", b"HTTP/1.1 100 Continue\r\n\r\n")),
    "empty chunks": ("http", _trickle(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")),
    "silent TLS handshake": ("https", _silence),
    "trickling TLS handshake": ("https", _trickle(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb")),
}


@pytest.mark.parametrize(("scheme", "serve"), SLOW.values(), ids=SLOW.keys())
def test_the_deadline_is_total_however_slowly_bytes_come(
    scheme: str, serve: Callable[[socket.socket, threading.Event], None]
) -> None:
    deadline_s = 0.15
    with raw_server(serve) as port:
        remote = RemotePredictor(
            f"{scheme}://127.0.0.1:{port}", MACHINE, deadline_s=deadline_s, fallback=local(0.3),
            ssl_context=ssl.create_default_context() if scheme == "https" else None,
        )  # fmt: skip
        started_s = time.monotonic()
        table = remote.curves(OPS)
        took_s = time.monotonic() - started_s
        assert table.model.endswith(FALLBACK_MARK)
        assert isinstance(remote.status.last_error, DeadlineExceeded)
        assert took_s >= (1 - FALLBACK_SHARE) * deadline_s
        workers = [thread for thread in threading.enumerate() if thread.name == "threadcast-bounded-request"]
        for worker in workers:  # aborted, not left to listen for ever
            worker.join(PATIENT_S)
            assert not worker.is_alive()


def test_a_connection_that_nobody_accepts_ends_by_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(address)
            with pytest.raises(DeadlineExceeded):
                RemotePredictor(f"http://127.0.0.1:{address[1]}", MACHINE, deadline_s=0.15, last_resort=False).curves(
                    OPS
                )
        finally:
            for client in waiting:
                client.close()


@pytest.mark.parametrize("url", ["", "localhost:1", "ftp://localhost", "http://", "file:///etc/passwd"])
def test_an_url_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="http"):
        RemotePredictor(url, MACHINE)


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, math.inf, math.nan])
def test_a_deadline_that_bounds_nothing_is_refused(deadline_s: float) -> None:
    with pytest.raises(InvalidInput, match="deadline_s"):
        RemotePredictor("http://localhost", MACHINE, deadline_s=deadline_s)


def test_a_fallback_for_another_machine_is_refused() -> None:
    other = LocalPredictor(SerialShare(), Machine.uniform("other", 4), {})
    with pytest.raises(InvalidInput, match="fallback predicts for other-4c"):
        RemotePredictor("http://localhost", MACHINE, fallback=other)


def test_a_wrong_case_is_the_callers_error_and_asks_nobody(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local())
    with pytest.raises(InvalidInput, match="not among the 4"):
        remote.curves(OPS, cases=[Case(64)])
    assert service.questions == []


def test_where_neither_service_nor_fallback_can_answer_the_error_says_both_and_a_roofline_is_the_last_resort() -> None:
    class Unmeasured(SerialShare):
        def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
            raise ModelError("nothing was measured")

    nobody, fallback = "http://127.0.0.1:9", LocalPredictor(Unmeasured(), MACHINE, {}, version="unmeasured@1")
    with pytest.raises(ServiceUnavailable, match=r"cannot be reached.*nothing was measured"):
        RemotePredictor(nobody, MACHINE, deadline_s=PATIENT_S, fallback=fallback, last_resort=False).curves(OPS)
    table = RemotePredictor(nobody, MACHINE, deadline_s=PATIENT_S, fallback=fallback).curves(OPS)
    assert table.model == ROOFLINE + FALLBACK_MARK


def test_a_large_question_is_asked_in_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.prediction.questions.PART_OPS", 2)
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False)
    assert_same(remote.curves(OPS), local().curves(OPS))
    assert [len(question["ops"]) for question in service.questions] == [2, 1]


def test_parts_of_two_models_are_never_mixed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.prediction.questions.PART_OPS", 2)

    def moved_on() -> None:
        if len(service.questions) == 2:
            service.predictor = local(0.5, version="serial_share@2")

    service.before = moved_on
    table = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, last_resort=False).curves(OPS)
    assert table.model == "serial_share@2"
    assert_same(table, local(0.5).curves(OPS))


def test_a_model_that_moves_with_every_answer_ends_in_the_fallback(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threadcast.prediction.questions.PART_OPS", 1)

    def move_on() -> None:
        service.predictor = local(0.5, version=f"serial_share@{len(service.questions)}")

    service.before = move_on
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3))
    table = remote.curves(OPS)  # of no version all curves are there: those of the last one, and the fallback's
    assert_same(table.take([1]), local(0.5).curves(OPS[1:2]))
    assert_same(table.take([0, 2]), local(0.3).curves([OPS[0], OPS[2]]))
    assert "changed its model" in str(remote.status.last_error)


def test_the_deadline_is_over_all_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threadcast.prediction.questions.PART_OPS", 1)
    passed, add = Clock(), VersionedCurves.add

    def slowly(*arguments: Any) -> None:
        add(*arguments)
        passed.now_s += 0.48 * PATIENT_S

    monkeypatch.setattr(VersionedCurves, "add", slowly)
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3))
    monkeypatch.setattr(remote._client, "_clock", lambda: time.monotonic() + passed())
    table = remote.curves(OPS)
    assert_same(table.take([0, 1]), local().curves(OPS[:2]))
    assert_same(table.take([2]), local(0.3).curves(OPS[2:]))
    assert isinstance(remote.status.last_error, DeadlineExceeded)
    assert_same(remote.curves(OPS[:2]), local().curves(OPS[:2]))
    assert remote.status.source_of_curves == "cache"


def test_fresh_curves_are_not_asked_for_again_and_old_ones_are_and_outlast_a_service_that_is_down(
    service: Service,
) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.9))
    for _ in range(3):
        remote.curves(OPS)
    assert (len(service.questions), remote.status.cached, remote.status.stale) == (1, 2, 0)
    remote._curves._fresh_s, service.status = 0.0, 500
    table = remote.curves(OPS)
    assert_same(table, local().curves(OPS))
    assert (table.model, remote.status.source_of_curves) == ("serial_share@1", "stale cache")
    assert (remote.status.stale, remote.status.fallbacks, remote.status.age_s > 0) == (1, 0, True)
    assert "500" in str(remote.status.last_error)
    service.status, service.predictor = 200, local(0.5, version="serial_share@2")
    assert_same(remote.curves(OPS), local(0.5).curves(OPS))
    assert (remote.status.model, remote.status.last_error) == ("serial_share@2", None)
