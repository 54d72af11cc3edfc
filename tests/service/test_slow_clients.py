"""The real server and clients that send slowly, too much, or no HTTP: others are served."""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.service_data import CURVES, MEASURED, graph_document
from tests.service.test_server import LONG_S, Running, environment, running
from tests.waiting import eventually
from threadcast.service.http_server import CONNECTIONS
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store

HEAD = " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
POST = b"POST /v1/plans" + HEAD.encode()
PARTS = [b"", b"P", b"GET /v1/info HTTP/1.1\r\nHost: local", POST + b"1000\r\n", POST + b"1000\r\n\r\n{"]


@contextlib.contextmanager
def waiting(directory: Path, models: Path, receive_s: float) -> Iterator[Running]:
    """A server with four threads that waits so long for a request."""
    with Store.open(directory / "store.sqlite") as store:
        store.add(MEASURED)
    settings = ServiceSettings(store=directory / "store.sqlite", models=models)
    (directory / "threadcast.toml").write_text(f"[service]\nreceive_s = {receive_s}\nmax_body_bytes = 100000\n")
    assert "THREADCAST_CONFIG" not in environment(directory)
    with running(settings, directory, "--threads", "4") as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Running]:
    """A server that waits for requests longer than any test lasts."""
    with waiting(tmp_path_factory.mktemp("slow"), models, LONG_S) as started:
        yield started


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=LONG_S)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of one answer."""
    file = connection.makefile("rb")
    status = int(file.readline().split()[1])
    headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n"))
    return status, headers, file.read(int(headers.get("content-length", 0)))


def is_served(server: Running) -> bool:
    return all(server.get(path).status == 200 for path in ("/v1/info", "/v1/models", "/health/ready"))


def test_clients_that_send_a_byte_now_and_then_hold_nobody_up(server: Running) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(10) for _ in PARTS]
        for number, connection in enumerate(slow):
            connection.sendall(PARTS[number % len(PARTS)])
        assert is_served(server)
        for connection in slow[1::5]:
            connection.sendall(b"O")
        assert is_served(server)


def test_more_slow_clients_than_connections_give_way_to_new_ones(server: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS + 60):
            connection = stack.enter_context(connect(server))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /")
        assert is_served(server)


def test_long_bodies_are_refused_while_others_are_served(server: Running) -> None:
    statuses = []

    def flood() -> None:
        with connect(server) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(POST + b"100000000\r\n\r\n" + b"x" * 1_000_000)
            statuses.append(answer(connection)[0])

    threads = [threading.Thread(target=flood) for _ in range(12)]
    for thread in threads:
        thread.start()
    assert is_served(server)
    for thread in threads:
        thread.join()
    assert statuses == [413] * 12


@pytest.mark.parametrize("status", [413, 503])
def test_what_is_refused_before_it_has_arrived_is_a_problem_and_counted(server: Running, status: int) -> None:
    with contextlib.ExitStack() as stack:
        length = 1_000_000 if status == 413 else 100_000
        connections = [stack.enter_context(connect(server)) for _ in range(6)]
        for connection in connections:
            connection.sendall(POST + str(length).encode() + b"\r\n\r\n" + b"x" * 99_000)
        ready = select.select(connections, [], [], LONG_S)[0]
        found, headers, content = answer(ready[0])
        assert (found, headers["content-type"]) == (status, "application/problem+json")
        assert json.loads(content)["status"] == status
    assert f'code="{status}",method="POST",route="(no route)"' in server.get("/metrics").data.decode()


def post(path: str, document: dict[str, Any], **headers: str) -> bytes:
    """The bytes of a request with this JSON document."""
    body = json.dumps(document)
    more = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
    return f"POST {path}{HEAD}{len(body)}{more}\r\n\r\n{body}".encode()


def in_flight(server: Running) -> float:
    found = re.search(r"requests_in_flight ([0-9.]+)", server.get("/metrics").data.decode())
    assert found
    return float(found[1])


def test_a_stopped_server_answers_what_it_works_at(settings: ServiceSettings, tmp_path: Path) -> None:
    with running(settings, tmp_path) as server, connect(server) as connection:
        document = {"graph": graph_document(**CURVES), "cores": 2, "policy": "fifo"}
        connection.sendall(post("/v1/plans", document))  # the first plan starts a process, which takes a while
        assert eventually(lambda: in_flight(server) >= 2, LONG_S)
        server.process.send_signal(signal.SIGTERM)
        status, _, content = answer(connection)
        assert status == 200
        assert json.loads(content)["schema"] == "threadcast.plan/1"
        assert server.stop(signal.SIGTERM) == 0
        assert not server.left()


@pytest.mark.system
def test_planning_processes_end_with_their_server(settings: ServiceSettings, tmp_path: Path) -> None:
    with running(settings, tmp_path) as server:
        body: Any = {"graph": graph_document(**CURVES), "cores": 2}
        assert server.post("/v1/plans", body).status == 200
        assert server.stop(signal.SIGINT) == 0
        assert not server.left()
