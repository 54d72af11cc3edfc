"""The service speaks TLS with a certificate, reads a renewed one at SIGHUP, and refuses files that are none."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
import urllib3

from tests.service.service_data import MACHINE, OPS
from tests.service.test_server import LONG_S, Running, arguments, refused, running
from tests.waiting import eventually
from threadcast.service.settings import ServiceSettings


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def issue(authority: trustme.CA, directory: Path, name: str) -> tuple[str, str]:
    """Files of a new certificate for 127.0.0.1 and `name`, and of its key."""
    made = authority.issue_cert("127.0.0.1", name)
    chain, key = directory / "chain.pem", directory / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return str(chain), str(key)


@pytest.fixture
def server(settings: ServiceSettings, tmp_path: Path, authority: trustme.CA) -> Iterator[Running]:
    """A server with a certificate for the name `first`."""
    chain, key = issue(authority, tmp_path, "first")
    with running(settings, tmp_path, "--tls-cert", chain, "--tls-key", key) as started:
        yield started


def client(authority: trustme.CA) -> ssl.SSLContext:
    made = ssl.create_default_context()
    authority.configure_trust(made)
    return made


def names(server: Running, context: ssl.SSLContext) -> set[str]:
    """The DNS names in the certificate that the server shows."""
    host, port = server.url.removeprefix("https://").split(":")
    plain = socket.create_connection((host, int(port)), timeout=LONG_S)
    with context.wrap_socket(plain, server_hostname=host) as connection:
        shown = connection.getpeercert()
    assert shown is not None
    return {str(value) for kind, value in shown["subjectAltName"] if kind == "DNS"}


def test_it_answers_over_tls_and_shows_a_renewed_certificate_after_sighup(
    server: Running, authority: trustme.CA, tmp_path: Path
) -> None:
    assert server.url.startswith("https://")
    with urllib3.PoolManager(ssl_context=client(authority), retries=False, timeout=LONG_S) as pool:
        body = {"ops": [OPS[0].key], "machine": MACHINE.fingerprint}
        assert pool.request("POST", f"{server.url}/v1/predictions", json=body).status == 200
    assert names(server, client(authority)) == {"first"}
    issue(authority, tmp_path, "second")
    server.process.send_signal(signal.SIGHUP)
    assert eventually(lambda: names(server, client(authority)) == {"second"}, LONG_S)


def test_who_does_not_speak_tls_is_closed_and_holds_nobody_up(server: Running, authority: trustme.CA) -> None:
    host, port = server.url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(port)), timeout=LONG_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert not plain.recv(1000).startswith(b"HTTP/")
    with socket.create_connection((host, int(port)), timeout=LONG_S):  # no handshake at all
        assert names(server, client(authority)) == {"first"}


def test_files_that_are_no_certificate_are_one_line_and_exit_1(settings: ServiceSettings, tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("this is no certificate")
    for more in (["--tls-cert", str(tmp_path / "none.pem")], ["--tls-cert", str(tmp_path / "absent.pem")]):
        assert more[1] in refused([*arguments(settings), *more], tmp_path)
    assert "service.tls_cert" in refused([*arguments(settings), "--tls-key", str(tmp_path / "none.pem")], tmp_path)
