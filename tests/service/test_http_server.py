"""`HttpServer` over real sockets in this process: bounds, bodies, framing, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.waiting import HANGS_S, eventually
from threadcast.service.http_exchange import Exchange
from threadcast.service.http_server import BODIES_IN_MEMORY, CONNECTIONS, Bounds, HttpServer
from threadcast.service.logs import GONE, Access
from threadcast.service.wsgi_call import Answer

LONG_S = HANGS_S
MAX_BODY = 200_000
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Served:
    """A server in a thread of its own, with an application that echoes bodies."""

    def __init__(self, bounds: Bounds, threads: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.held, self.entered = threading.Event(), threading.Semaphore(0)
        self.refused: list[tuple[str, int]] = []
        self.noted: list[Access] = []
        self.drained = threading.Event()
        self._bounds, self._threads = bounds, threads
        self._ready = threading.Event()
        self._runner = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._runner.start()
        assert self._ready.wait(LONG_S)

    def app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["PATH_INFO"] == "/wait":
            self.entered.release()
            assert self.held.wait(LONG_S)
        if environ["PATH_INFO"] == "/fault":
            raise RuntimeError("a fault of the application")
        body = environ["wsgi.input"].read()
        if environ["PATH_INFO"] == "/long":
            body = b"x" * (32 << 20)
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with ThreadPoolExecutor(self._threads) as threads:
            self.server = HttpServer(
                self.app, threads, self._bounds, address=self.address, most_sending=self._threads,
                refused=lambda method, status: self.refused.append((method, status)),
                access=self.noted.append,
            )  # fmt: skip
            self.listener.setblocking(False)
            self.server.add_socket(self.listener)
            self._ready.set()
            await self._stop.wait()
            await self.server.drain(LONG_S)
            self.drained.set()
            self.held.set()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=LONG_S)

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # it has stopped
            self.loop.call_soon_threadsafe(self._stop.set)

    def close(self) -> None:
        self.held.set()
        self.stop()
        self._runner.join(LONG_S)
        self.listener.close()


@contextlib.contextmanager
def serving(*, threads: int = 2, **bounds: float) -> Iterator[Served]:
    made = Served(Bounds(**{"max_body_bytes": MAX_BODY, **bounds}), threads)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with two threads."""
    with serving() as made:
        yield made


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and content of one answer."""
    file = connection.makefile("rb")
    status = int(file.readline().split()[1])
    headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n"))
    return status, file.read(int(headers["content-length"]))


def everything(served: Served, sent: bytes) -> bytes:
    """All that the server sends until it closes the connection; the client sends nothing more."""
    with served.connect() as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def ask(served: Served, sent: bytes) -> tuple[int, bytes]:
    with served.connect() as connection:
        connection.sendall(sent)
        return answer(connection)


def with_length(body: bytes, *headers: bytes) -> bytes:
    more = b"".join(header + b"\r\n" for header in headers)
    return POST + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*parts: bytes) -> bytes:
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (*parts, b""))


PACKED = b"Content-Encoding: gzip"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        with_length(b"hello"),
        chunked(b"he", b"llo"),
        with_length(gzip.compress(b"hello"), PACKED),
        with_length(gzip.compress(b"hel") + gzip.compress(b"lo"), PACKED),
        POST + PACKED + b"\r\n" + chunked(gzip.compress(b"hello")).removeprefix(POST),
        with_length(gzip.compress(b"hello"), b"Content-Encoding: identity, X-GZIP"),
        POST + CHUNKED + b'5;a;b=c;d="e;\\"f"\r\nhello\r\n0\r\n\r\n',
        POST + CHUNKED + b"5 ; a = b\r\nhello\r\n0;last\r\nSum: 1\r\nOther:\r\n\r\n",
        POST + CHUNKED + b"".join(b"1;" + b"x" * 6_000 + b"\r\n%c\r\n" % byte for byte in b"hello") + b"0\r\n\r\n",
        POST + CHUNKED + b"05\r\nhello\r\n000\r\nContent-Length: 9\r\nX: " + b"x" * 30_000 + b"\r\n\r\n",
    ],
    ids=[
        "length",
        "chunks",
        "gzip",
        "gzip in two members",
        "gzip in chunks",
        "x-gzip",
        "extensions",
        "extensions and trailers",
        "long extensions",
        "long trailers",
    ],
)
def test_a_body_arrives_whole_however_it_is_framed(served: Served, sent: bytes) -> None:
    assert ask(served, sent) == (200, b"hello")


@pytest.mark.parametrize(
    "sent",
    [
        with_length(b"x" * (MAX_BODY + 1)),
        chunked(*[b"x" * 50_000] * 5),
        with_length(gzip.compress(bytes(MAX_BODY + 1)), PACKED),
        with_length(gzip.compress(bytes(1 << 28), 1)[:150_000], PACKED),
        POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
        POST + b"Expect: 100-continue\r\nContent-Length: 999999\r\n\r\n",
    ],
    ids=["length", "chunks", "unpacked", "bomb", "many digits", "not sent yet"],
)
def test_a_body_that_is_too_long_is_refused_and_not_kept(served: Served, sent: bytes) -> None:
    status, content = ask(served, sent)
    assert status == 413
    assert b"max_body_bytes" in content
    assert eventually(lambda: served.server.bytes_in_memory == 0, LONG_S)
    assert ("POST", 413) in served.refused
    assert ask(served, with_length(b"x" * MAX_BODY)) == (200, b"x" * MAX_BODY)


def test_a_client_that_asks_before_it_sends_the_body_is_told_to_go_on(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(b"hi")
        assert answer(connection) == (200, b"hi")
    with served.connect() as connection:  # HTTP/1.0 knows no such answer
        old = POST.replace(b"HTTP/1.1", b"HTTP/1.0")
        connection.sendall(old + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert ask(served, with_length(b"hello")) == (200, b"hello")  # by now the head has been read
        connection.sendall(b"hi")
        assert answer(connection) == (200, b"hi")


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"hello", "the body is no gzip data"),
        (gzip.compress(b"hello")[:-3], "truncated"),
        (gzip.compress(b"hello") + b"more", "the body is no gzip data"),
        (gzip.compress(b"hello")[:-8] + bytes(8), "the body is no gzip data"),
        (gzip.compress(bytes(range(256)) * 700)[:-20] + bytes(20), "the body is no gzip data"),
    ],
    ids=["no gzip", "truncated", "more behind it", "wrong sum", "damaged at the end"],
)
def test_a_body_that_cannot_be_unpacked_is_a_problem_and_a_line_of_the_log(
    served: Served, packed: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    for framed in (with_length(packed, PACKED), POST + PACKED + b"\r\n" + chunked(packed).removeprefix(POST)):
        caplog.clear()
        status, content = ask(served, framed.replace(b"\r\n", b"\r\nX-Request-Id: me-2\r\n", 1))
        problem = json.loads(content)
        assert (status, problem["status"], problem["reference"]) == (400, 400, "me-2")
        assert why in problem["detail"]
        (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
        assert line.getMessage() == f"POST /echo was refused with 400: {problem['detail']}"
        assert line.request_id == "me-2"  # type: ignore[attr-defined]
    assert ("POST", 400) in served.refused
    assert served.server.bytes_in_memory == 0


LONG = b"x" * 3_000_000


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /?" + b"x" * 40_000, 414),
        (b"GET /?" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET /?" + LONG + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
        (b"GET /?" + b"x" * 32_700 + b" HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100 + b"\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + LONG + b"\r\n\r\n", 431),
        (POST + b"X: " + LONG + b"\r\nContent-Length: 3000000\r\n\r\n" + LONG, 431),
        (POST + CHUNKED + b"0\r\nX: " + LONG + b"\r\n\r\n", 431),
        (POST + CHUNKED + b"0\r\n" + b"X: y\r\n" * 6_000 + b"\r\n", 431),
        (b"\x16\x03" + LONG, 400),
    ],
)
def test_a_head_that_is_too_long_is_a_problem_that_its_client_can_read(
    served: Served, sent: bytes, status: int
) -> None:
    with served.connect() as connection:
        sender = threading.Thread(target=lambda: send_all(connection, sent))
        sender.start()
        found, content = answer(connection)
        assert connection.recv(1) == b""
        sender.join()
    assert (found, json.loads(content)["status"]) == (status, status)
    assert status == 400 or b" 32768 bytes" in content
    method = "GET" if sent.startswith(b"GET") else "POST" if sent.startswith(b"POST") else "-"
    assert (method, status) in served.refused


def send_all(connection: socket.socket, sent: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        connection.sendall(sent)


HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0;a=\n\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0;a=b c\r\n\r\n",
        b'Transfer-Encoding: chunked\r\n\r\n0;a="b\r\n\r\n',
        b"Transfer-Encoding: chunked\r\n\r\n0;\x00\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nno colon\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n folded\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 40_000 + b"\r\na\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"x" * 9_000 + b"\r\na\r\n") * 5 + b"0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\n\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 40\r\n\r\n",
        b"Content-Length: 0, 40\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Content-Length: 0_0\r\n\r\n",
        b"Content-Length:\r\n\r\n",
        b"Content-Length: \r\nTransfer-Encoding: identity\r\n\r\n",
        b"Content-Length: \xb2\r\n\r\n",
        b"Content-Length: 0\r\n\tfolded\r\n\r\n",
        b"Content-Length 0\r\n\r\n",
        b"X: a\rContent-Length: 0\r\n\r\n",
        b"X: \x00\r\n\r\n",
    ],
)
def test_a_request_that_two_servers_could_read_differently_is_refused(served: Served, sent: bytes) -> None:
    answered = everything(served, POST + sent + HIDDEN)
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert answered.count(b"HTTP/1.1 ") == 1
    assert json.loads(answered.partition(b"\r\n\r\n")[2])["status"] == 400


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: LocalHost", "GET / HTTP/1.1\r\nHost: [::1]:80", "GET / HTTP/1.0",
        "GET http://a/ HTTP/1.1\r\nHost: a",
    ],
)  # fmt: skip
def test_a_request_names_one_host(served: Served, head: str) -> None:
    assert ask(served, head.encode() + b"\r\n\r\n")[0] == 200


@pytest.mark.parametrize(
    ("head", "wrong"),
    [
        ("GET / HTTP/1.1", "header/Host"), ("GET / HTTP/1.1\r\nHost:", "header/Host"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a", "header/Host"), ("GET / HTTP/1.0\r\nHost: a, b", "header/Host"),
        ("GET / HTTP/1.1\r\nHost: a b", "header/Host"), ("GET / HTTP/1.1\r\nHost: me@localhost", "header/Host"),
        ("GET http://a/ HTTP/1.1", "header/Host"), ("GET http://me@a/ HTTP/1.1\r\nHost: a", "path"),
        ("GET http:///a HTTP/1.1\r\nHost: a", "path"), ("GET http://[a/ HTTP/1.1\r\nHost: a", "path"),
        ("GET /?" + 40_000 * "x", "path"), ("GET / HTTP/1.1\r\nHost: a\r\nX: " + 40_000 * "x", "header"),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon", "header"),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x", "header/Content-Length"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x", "header/Transfer-Encoding"),
    ],
)  # fmt: skip
def test_a_refusal_points_to_the_part_of_the_head_that_is_wrong(served: Served, head: str, wrong: str) -> None:
    problem = json.loads(ask(served, head.encode() + b"\r\n\r\n")[1])
    assert problem["in"] + problem["pointer"] == wrong


def test_requests_that_come_at_once_are_answered_one_after_the_other(served: Served) -> None:
    last = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answered = everything(served, with_length(b"one") + chunked(b"two") + last)
    assert answered.count(b"HTTP/1.1 200 OK") == 3
    assert answered.index(b"one") < answered.index(b"two")


@pytest.mark.parametrize("part", [b"", b"GET / HT", POST + b"Content-Length: 9\r\n\r\nx", chunked(b"x")[:-5]])
def test_what_does_not_arrive_in_time_is_closed(part: bytes) -> None:
    with serving(receive_s=0.2) as served:
        assert everything(served, part) == b""
        assert ask(served, GET)[0] == 200
        assert served.server.bytes_in_memory == 0


def test_more_connections_than_there_may_be_close_the_one_that_has_waited_longest(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in range(CONNECTIONS)]
        for connection in slow:
            connection.sendall(b"GET /")
        assert ask(served, GET)[0] == 200
        with contextlib.suppress(ConnectionResetError):  # where the server had not read all that came
            assert slow[0].recv(1) == b""
        slow[-1].sendall(GET[5:])
        assert answer(slow[-1])[0] == 200


def test_more_bodies_than_memory_is_set_aside_for_are_refused(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in range(BODIES_IN_MEMORY + 1)]
        for connection in slow:
            connection.sendall(with_length(b"x" * MAX_BODY)[:-1])
        assert eventually(lambda: ("POST", 503) in served.refused, LONG_S)
        assert ask(served, with_length(b"x" * 1000)) == (200, b"x" * 1000)
    assert eventually(lambda: served.server.bytes_in_memory == 0, LONG_S)


def test_answers_that_nobody_reads_hold_no_thread(served: Served) -> None:
    with contextlib.ExitStack() as stack:
        lazy = [stack.enter_context(served.connect()) for _ in range(6)]
        for connection in lazy:
            connection.sendall(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
        assert eventually(lambda: len(served.server._busy) == len(served.server._sending) == 2, LONG_S)  # the threads
        assert ask(served, GET)[0] == 200
        assert sum(len(read_all(connection)) > 32 << 20 for connection in lazy) == 2


def read_all(connection: socket.socket) -> bytes:
    """All until the end of the first long answer, or until the connection is closed."""
    arrived = bytearray()
    with contextlib.suppress(ConnectionError):
        while len(arrived) <= 32 << 20 and (data := connection.recv(1 << 20)):
            arrived += data
    return bytes(arrived)


class Prompt(ThreadPoolExecutor):
    """Takes a call only once a thread works at it, as long as it is prompt."""

    prompt = True

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        begun = threading.Event()
        future = super().submit(lambda: (begun.set(), call(*arguments, **named))[1])
        assert not self.prompt or begun.wait(LONG_S)
        return future


def test_a_request_that_takes_too_long_or_waits_too_long_for_a_thread_is_told_so() -> None:
    with serving(threads=1, answer_s=0.2) as served, served.connect() as first, served.connect() as second:
        threads = served.server.threads = Prompt(1)
        first.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        assert served.entered.acquire(timeout=LONG_S)
        threads.prompt = False
        second.sendall(GET)
        for connection, why in ((first, b"this was not done within 0.2 s"), (second, b"no thread was free for this")):
            status, content = answer(connection)
            assert status == 503
            assert why in content
        served.held.set()
        threads.shutdown()
        served.server.threads = Prompt(1)
        assert eventually(lambda: ask(served, GET)[0] == 200, LONG_S)
        served.server.threads.shutdown()


def test_an_answer_is_let_go_without_the_cycle_collector(served: Served) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            with served.connect() as connection:
                connection.sendall(with_length(b"hello"))
                assert answer(connection) == (200, b"hello")
        assert eventually(lambda: not any(type(one) in (Exchange, Answer) for one in gc.get_objects()), LONG_S)
    finally:
        gc.enable()


def test_a_client_that_has_gone_takes_no_thread() -> None:
    with serving(threads=1) as served, served.connect() as first:
        first.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        assert served.entered.acquire(timeout=LONG_S)
        with served.connect() as gone:
            gone.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            assert eventually(lambda: len(served.server._busy) == 2, LONG_S)
        assert eventually(lambda: len(served.server._busy) == 1, LONG_S)
        served.held.set()
        assert answer(first)[0] == 200
        assert ask(served, GET)[0] == 200
        assert not served.entered.acquire(blocking=False)


def test_every_request_is_noted_once_also_one_whose_client_has_left() -> None:
    with serving(threads=1, answer_s=LONG_S) as served:
        named = b"\r\nX-Request-Id: me-1\r\n"
        assert ask(served, GET.replace(b"\r\n", named, 1))[0] == 200
        assert ask(served, with_length(b"x" * (MAX_BODY + 1)))[0] == 413
        with served.connect() as connection:
            connection.sendall(GET.replace(b"/", b"/wait", 1))
            assert served.entered.acquire(timeout=LONG_S)
        assert eventually(lambda: len(served.noted) == 3, LONG_S)
        served.held.set()
        assert ask(served, GET)[0] == 200
        noted = [(one.method, one.path, one.status) for one in served.noted]
    assert noted == [("GET", "/", 200), ("POST", "/echo", 413), ("GET", "/wait", GONE), ("GET", "/", 200)]
    assert served.noted[0].request_id == "me-1"
    assert len({one.request_id for one in served.noted}) == 4
    assert all(one.client == "127.0.0.1" and one.duration_ms > 0 for one in served.noted)


def test_a_fault_is_500_and_the_connection_goes_on(served: Served) -> None:
    with served.connect() as connection:
        connection.sendall(b"GET /fault HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer(connection)[0] == 500
        connection.sendall(GET)
        assert answer(connection)[0] == 200


def test_it_answers_what_it_works_at_when_it_stops_and_accepts_nothing_more() -> None:
    with serving() as served, served.connect() as connection, served.connect() as idle:
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        assert served.entered.acquire(timeout=LONG_S)
        served.stop()
        assert eventually(lambda: refuses(served), LONG_S)
        assert not served.drained.is_set()
        served.held.set()
        assert answer(connection)[0] == 200
        assert served.drained.wait(LONG_S)
        assert idle.recv(1) == b""


def refuses(served: Served) -> bool:
    try:
        served.connect().close()
    except ConnectionError:
        return True
    return False
