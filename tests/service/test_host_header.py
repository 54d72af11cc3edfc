"""Over real sockets: which requests name the host that they are for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.service_data import MEASURED
from tests.service.test_server import LONG_S, Running, running
from threadcast.service.settings import ServiceSettings
from threadcast.store import Store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Running]:
    """A server on a free port of 127.0.0.1."""
    directory = tmp_path_factory.mktemp("host")
    with Store.open(directory / "store.sqlite") as store:
        store.add(MEASURED)
    with running(ServiceSettings(store=directory / "store.sqlite", models=models), directory) as started:
        yield started


def ask(server: Running, request: str) -> tuple[int, bytes]:
    """Status and content of the answer to a head in which `%` stands for the server's host and port."""
    place = server.url.removeprefix("http://")
    host, port = place.split(":")
    with socket.create_connection((host, int(port)), timeout=LONG_S) as connection:
        head = f"{request}\nConnection: close\n\n".replace("%", place).replace("\n", "\r\n")
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


@pytest.mark.parametrize(
    "request_head",
    [
        "GET /v1/info HTTP/1.1\nHost: %",
        "GET /v1/info HTTP/1.1\nHost: LocalHost",
        "GET /v1/info HTTP/1.0",
        "GET http://%/v1/info HTTP/1.1\nHost: %",
        "GET http://%/v1/info HTTP/1.0",
        "GET http://LOCALHOST/v1/info HTTP/1.1\nHost: localhost:80",
        "GET http://[::1]/v1/info HTTP/1.1\nHost: [::1]",
        "GET /v1/info?machine=http://other/ HTTP/1.1\nHost: %",
    ],
)
def test_a_request_that_names_one_host_is_answered(server: Running, request_head: str) -> None:
    assert ask(server, request_head)[0] == 200


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ("GET /v1/info HTTP/1.1", 400),
        ("GET /no/such/path HTTP/1.1", 400),
        ("GET /v1/info HTTP/1.1\nHost:", 400),
        ("GET /v1/info HTTP/1.1\nHost: %\nHost: %", 400),
        ("GET /v1/info HTTP/1.1\nHost: %\nHost: other", 400),
        ("GET /v1/info HTTP/1.0\nHost: %\nHost: other", 400),
        ("GET /v1/info HTTP/1.1\nHost: %, other", 400),
        ("GET /v1/info HTTP/1.1\nHost: a b", 400),
        ("GET /v1/info HTTP/1.1\nHost: somebody@localhost", 400),
        ("GET http://%/v1/info HTTP/1.1", 400),
        ("GET http://other/v1/info HTTP/1.1\nHost: %", 421),
        ("GET http://%/v1/info HTTP/1.1\nHost: localhost", 421),
        ("GET http://other/v1/info HTTP/1.0", 421),
        ("GET http://%@other/v1/info HTTP/1.1\nHost: %", 421),
        ("GET http:///v1/info HTTP/1.1\nHost: %", 421),
        ("GET ftp://%/v1/info HTTP/1.1\nHost: %", 421),
        ("GET /v1/info HTTP/1.1\nHost: other", 421),
        ("POST http://other/v1/plans HTTP/1.1\nHost: %\nContent-Type: application/json\nContent-Length: 0", 421),
    ],
)
def test_a_request_that_names_no_or_another_host_is_refused(server: Running, request_head: str, status: int) -> None:
    found, content = ask(server, request_head)
    assert found == status
    assert json.loads(content)["status"] == status
