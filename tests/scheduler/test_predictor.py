"""Curves in process and over HTTP: the same, kept, and never waited for beyond the deadline."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Case, Curve, CurveTable, Machine, Measurement, Op, Sample, Source, TensorSpec
from threadcast.core.errors import DeadlineExceeded, InvalidInput, ServiceError, ServiceUnavailable
from threadcast.models.base import PerformanceModel
from threadcast.scheduler.predictor import LocalPredictor, Predictor
from threadcast.scheduler.remote import FALLBACK_MARK, RemotePredictor

MACHINE = Machine.uniform("four", 4)
OPS = [Op("mm", (TensorSpec((n, 7)), TensorSpec((7, n))), outputs=(TensorSpec((n, n)),)) for n in (3, 5, 9)]
PATIENT_S = 30.0
"""A deadline that no test reaches: what it bounds is done long before on any machine."""


class SerialShare(PerformanceModel):
    """Amdahl's law with a fixed serial share; measured cases are their medians. Counts how often it is asked."""

    name = "serial_share"

    def __init__(self, share: float = 0.1) -> None:
        self.share = share
        self.asked = 0

    def predict(self, op: Op, observed: Sequence[Measurement], cases: Sequence[Case], *, machine: Machine) -> Curve:
        self.asked += 1
        one_s = (op.flops + 1) / 3e9
        seconds = np.array([one_s * (self.share + (1 - self.share) / case.threads) for case in cases])
        source = [Source.LEARNED] * len(cases)
        for measured in observed:
            index = list(cases).index(measured.case)
            seconds[index], source[index] = measured.seconds, Source.MEASURED
        return Curve(tuple(cases), seconds, seconds / 1.3, seconds * 1.7, tuple(source))

    def to_files(self) -> dict[str, bytes]:
        return {"share.json": json.dumps(self.share).encode()}

    def from_files(self, files: Mapping[str, bytes]) -> SerialShare:
        self.share = json.loads(files["share.json"])
        return self


def local(share: float = 0.1, *, version: str = "serial_share@1") -> LocalPredictor:
    return LocalPredictor(SerialShare(share), MACHINE, {}, version=version)


def answer_of(predictor: LocalPredictor, question: dict[str, Any]) -> dict[str, Any]:
    """What the service answers to `question` when it predicts with `predictor`."""
    ops = [Op.from_json(op) for op in question["ops"]]
    table = predictor.curves(ops, cases=[Case(**case) for case in question["cases"]])
    return {**table.to_json(), "machine": predictor.machine.fingerprint, "ops": [op.key for op in ops]}


def assert_same(first: CurveTable, second: CurveTable) -> None:
    assert first.cases == second.cases
    for name in ("seconds", "low", "high", "source"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), strict=True)


# --- in process -------------------------------------------------------------------------------------------------


def test_local_predictor_is_a_predictor() -> None:
    assert isinstance(local(), Predictor)


def test_local_curves_are_the_models_own_over_the_machines_cases() -> None:
    table = local(0.25).curves(OPS)
    assert table.cases == MACHINE.cases()
    assert table.model == "serial_share@1"
    for i, op in enumerate(OPS):
        expected = SerialShare(0.25).predict(op, [], MACHINE.cases(), machine=MACHINE)
        np.testing.assert_array_equal(table[i].seconds, expected.seconds)


def test_local_predictor_asks_the_model_once_for_an_op() -> None:
    model = SerialShare()
    predictor = LocalPredictor(model, MACHINE, {})
    predictor.curves([OPS[0], OPS[1], OPS[0]])
    predictor.curves([OPS[1], OPS[2]])
    assert model.asked == 3


def test_local_predictor_passes_this_machines_measurements_on_and_leaves_others_out() -> None:
    case, elsewhere = Case(2), Machine.uniform("other", 4)
    observed = {
        OPS[0].key: [
            Measurement(OPS[0], MACHINE, case, (Sample(0.5),)),
            Measurement(OPS[0], elsewhere, Case(3), (Sample(9.0),)),
        ]
    }
    curve = LocalPredictor(SerialShare(), MACHINE, observed).curves(OPS)[0]
    assert curve.at(case) == 0.5
    assert [source is Source.MEASURED for source in curve.source] == [False, True, False, False]


def test_forget_lets_new_measurements_count() -> None:
    observed: dict[str, list[Measurement]] = {}
    predictor = LocalPredictor(SerialShare(), MACHINE, observed)
    before = predictor.curves(OPS[:1])[0].at(Case(1))
    observed[OPS[0].key] = [Measurement(OPS[0], MACHINE, Case(1), (Sample(0.25),))]
    assert predictor.curves(OPS[:1])[0].at(Case(1)) == before
    predictor.forget()
    assert predictor.curves(OPS[:1])[0].at(Case(1)) == 0.25


def test_cases_are_columns_of_the_whole_curve_in_the_order_asked() -> None:
    predictor = local()
    whole, part = predictor.curves(OPS), predictor.curves(OPS, cases=[Case(4), Case(1)])
    np.testing.assert_array_equal(part.seconds, whole.seconds[:, [3, 0]])


@pytest.mark.parametrize("cases", [[Case(5)], [Case(1, "spread")], []])  # type: ignore[arg-type]
def test_cases_that_the_machine_does_not_have_are_refused(cases: list[Case]) -> None:
    with pytest.raises(InvalidInput, match="not among the 4 of the machine: 1 compact"):
        local().curves(OPS, cases=cases)


def test_no_op_gives_an_empty_table() -> None:
    assert local().curves([]).seconds.shape == (0, 4)


def test_threads_get_the_same_curves_from_one_local_predictor() -> None:
    predictor, expected = local(), local().curves(OPS)
    with ThreadPoolExecutor(8) as pool:
        for table in pool.map(lambda i: predictor.curves(OPS[i % 3 :] + OPS[: i % 3]), range(64)):
            assert sorted(table.seconds[:, 0]) == sorted(expected.seconds[:, 0])


# --- over HTTP --------------------------------------------------------------------------------------------------


@dataclass
class Service:
    """A prediction service on loopback whose answer a test chooses."""

    url: str
    questions: list[dict[str, Any]] = field(default_factory=list)
    predictor: LocalPredictor = field(default_factory=local)
    status: int = 200
    answer: Callable[[bytes], bytes] = bytes


@pytest.fixture
def service() -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            running.questions.append(question)
            content = running.answer(json.dumps(answer_of(running.predictor, question)).encode())
            self.send_response(running.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client hangs up on what is too long
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Service(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield running
        server.shutdown()
        thread.join()


def test_remote_curves_are_the_local_ones_to_the_last_bit(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    assert isinstance(remote, Predictor)
    table = remote.curves(OPS)
    assert_same(table, local().curves(OPS))
    assert table.model == "serial_share@1"


@given(share=st.floats(0, 1), sizes=st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_an_answer_survives_its_way_through_json(share: float, sizes: list[int]) -> None:
    from threadcast.scheduler.curve_answer import max_answer_bytes, read_curves

    ops = [Op("copy", (TensorSpec((n,)),), cost=(n * 1.1, n)) for n in sizes]
    table = local(share).curves(ops)
    keys = [op.key for op in ops]
    content = json.dumps({**table.to_json(), "machine": MACHINE.fingerprint, "ops": keys}).encode()
    assert len(content) <= max_answer_bytes(len(ops), len(table.cases))
    assert_same(read_curves(content, keys=keys, cases=table.cases, machine=MACHINE), table)


def test_remote_predictor_asks_once_for_an_op_and_for_whole_curves(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    remote.curves([OPS[0], OPS[0], OPS[1]], cases=[Case(2)])
    remote.curves(OPS[:2])
    remote.curves(OPS)
    asked = [[Op.from_json(op).key for op in question["ops"]] for question in service.questions]
    assert asked == [[OPS[0].key, OPS[1].key], [OPS[2].key]]
    assert all(len(question["cases"]) == 4 for question in service.questions)
    assert (remote.status.fetched, remote.status.cached) == (2, 1)


def test_curves_of_an_older_model_are_dropped_and_never_mixed(service: Service) -> None:
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S)
    remote.curves(OPS[:2])
    service.predictor = local(0.5, version="serial_share@2")
    table = remote.curves(OPS)
    assert table.model == "serial_share@2"
    assert_same(table, local(0.5).curves(OPS))


def test_the_model_asked_for_is_sent(service: Service) -> None:
    RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, model="champion").curves(OPS)
    assert service.questions[0]["model"] == "champion"


def test_threads_share_one_remote_predictor(service: Service) -> None:
    remote, expected = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S), local().curves(OPS)
    with ThreadPoolExecutor(8) as pool:
        for table in pool.map(lambda _: remote.curves(OPS), range(32)):
            assert_same(table, expected)
    status = remote.status
    assert status.fetched + status.cached == 32


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
    "too large": lambda content: content + b" " * 1_000_000,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_refused_and_the_fallback_answers(service: Service, garbage: Callable[[bytes], bytes]) -> None:
    service.answer = garbage
    with pytest.raises(ServiceError):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S).curves(OPS)
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3, version="spare@7"))
    table = remote.curves(OPS)
    assert table.model == "spare@7" + FALLBACK_MARK
    assert_same(table, local(0.3).curves(OPS))
    assert remote.status.source_of_curves == "fallback"
    assert isinstance(remote.status.last_error, ServiceError)


@pytest.mark.parametrize("status", [201, 204, 302, 404, 422, 429, 500, 503])
def test_a_status_other_than_200_is_refused(service: Service, status: int) -> None:
    service.status = status
    with pytest.raises(ServiceError, match=str(status)):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S).curves(OPS)


def test_the_service_is_asked_again_after_a_fallback(service: Service) -> None:
    service.status = 503
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, fallback=local(0.3))
    remote.curves(OPS)
    service.status = 200
    assert_same(remote.curves(OPS), local().curves(OPS))
    assert remote.status.source_of_curves == "service"
    assert remote.status.last_error is None


def test_no_service_at_all_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ServiceUnavailable):
        RemotePredictor(url, MACHINE, deadline_s=PATIENT_S).curves(OPS)


def test_a_host_that_does_not_exist_is_unavailable() -> None:
    with pytest.raises(ServiceUnavailable):
        RemotePredictor("http://threadcast.invalid:1", MACHINE, deadline_s=PATIENT_S).curves(OPS)


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A TCP server that hands its one connection to `serve`, whose event says that the test is over."""
    over = threading.Event()

    def run() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):  # the client hangs up, as it should
            serve(connection, over)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def _trickle(head: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Send `head`, then one byte every 10 ms for ever: no single read ever waits long."""

    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(head)
        while not over.wait(0.01):
            connection.sendall(b"x")

    return serve


def _silence(connection: socket.socket, over: threading.Event) -> None:
    over.wait()


SLOW = {
    "silence": ("http", _silence),
    "trickling status line": ("http", _trickle(b"HTTP/1.1 200 ")),
    "trickling headers": ("http", _trickle(b"HTTP/1.1 200 OK\r\nX-Long: ")),
    "trickling body": ("http", _trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")),
    "trickling body without length": ("http", _trickle(b"HTTP/1.1 200 OK\r\n\r\n")),
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
        assert took_s >= deadline_s
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
                RemotePredictor(f"http://127.0.0.1:{address[1]}", MACHINE, deadline_s=0.15).curves(OPS)
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
