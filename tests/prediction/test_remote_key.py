"""The key goes to the service and nowhere else, over a connection whose certificate was checked."""

from __future__ import annotations

import logging
import ssl
import subprocess
import traceback
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.prediction.conftest import served
from tests.prediction.predicting import MACHINE, OPS, PATIENT_S, Service, assert_same, local
from threadcast.core.errors import InvalidInput, ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings
from threadcast.prediction.remote import RemotePredictor

KEY = "tc_5ecret-K3y"


def settings_of(directory: Path, **environment: str) -> Settings:
    return Settings.read(directory=directory, environment={"HOME": str(directory), **environment})


def test_the_key_is_sent_as_a_bearer_token(service: Service) -> None:
    for key in (KEY, Secret(KEY)):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, key=key).curves(OPS)
    assert [headers["Authorization"] for headers in service.headers] == [f"Bearer {KEY}"] * 2


def test_without_a_key_none_is_sent(service: Service) -> None:
    RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S).curves(OPS)
    assert "Authorization" not in service.headers[0]


def test_the_key_comes_from_a_setting_or_its_file(service: Service, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    common = {"THREADCAST_PREDICTOR_URL": service.url, "THREADCAST_PREDICTOR_DEADLINE_S": str(PATIENT_S)}
    for name, value in (("KEY", KEY), ("KEY_FILE", str(tmp_path / "key"))):
        settings = settings_of(tmp_path, **common, **{f"THREADCAST_PREDICTOR_{name}": value})
        RemotePredictor.from_settings(settings, MACHINE).curves(OPS)
        assert service.headers[-1]["Authorization"] == f"Bearer {KEY}"


def test_two_keys_are_one_too_many(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, THREADCAST_PREDICTOR_URL="http://localhost", THREADCAST_PREDICTOR_KEY=KEY,
        THREADCAST_PREDICTOR_KEY_FILE=str(tmp_path / "key"),
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r"both predictor\.key and predictor\.key_file") as refused:
        RemotePredictor.from_settings(settings, MACHINE)
    assert KEY not in str(refused.value)


def test_settings_without_a_service_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"predictor\.url is not set"):
        RemotePredictor.from_settings(settings_of(tmp_path), MACHINE)


@pytest.mark.parametrize("status", [200, 302, 401, 500])
def test_a_service_that_repeats_the_key_does_not_get_it_shown(
    service: Service, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    service.status, service.answer = status, lambda _: f'{{"detail": "no such key: {KEY}"}}'.encode()
    remote = RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, key=KEY, last_resort=False)
    with pytest.raises(ServiceError) as refused:
        remote.curves(OPS)
    shown = "".join(traceback.format_exception(refused.value)) + repr(remote.status) + repr(vars(remote)) + caplog.text
    assert KEY not in shown


def test_a_redirect_is_not_followed_with_or_without_the_key(service: Service) -> None:
    service.status, service.answer_headers = 307, {"Location": service.url + "/elsewhere"}
    with pytest.raises(ServiceRefused, match="307"):
        RemotePredictor(service.url, MACHINE, deadline_s=PATIENT_S, key=KEY, last_resort=False).curves(OPS)
    assert len(service.questions) == 1


@pytest.mark.parametrize("url", [f"http://me:{KEY}@localhost", f"https://{KEY}@localhost:1/x"])
def test_a_password_in_the_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput, match="must not hold a name or password") as refused:
        RemotePredictor(url, MACHINE)
    assert KEY not in str(refused.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key and the certificate that it signed itself for 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    key, signed = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", signed],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, signed


@pytest.fixture
def tls_service(certificate: tuple[Path, Path]) -> Iterator[Service]:
    class Server(ThreadingHTTPServer):
        def get_request(self) -> tuple[ssl.SSLSocket, tuple[str, int]]:
            connection, address = self.socket.accept()
            connection.settimeout(PATIENT_S)
            return context.wrap_socket(connection, server_side=True), address

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client hangs up, as it should

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    with served(Server, "https") as running:
        yield running


def test_a_certificate_that_nobody_vouches_for_is_refused_before_the_key_is_sent(tls_service: Service) -> None:
    remote = RemotePredictor(tls_service.url, MACHINE, deadline_s=PATIENT_S, key=KEY, last_resort=False)
    with pytest.raises(ServiceUnavailable, match="certificate verify failed"):
        remote.curves(OPS)
    assert tls_service.questions == []


def test_a_certificate_that_the_context_trusts_is_taken(tls_service: Service, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(certificate[1]))
    remote = RemotePredictor(tls_service.url, MACHINE, deadline_s=PATIENT_S, key=KEY, ssl_context=context)
    assert_same(remote.curves(OPS), local().curves(OPS))
    assert tls_service.headers[0]["Authorization"] == f"Bearer {KEY}"
