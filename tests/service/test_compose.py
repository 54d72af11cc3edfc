"""The compose file is one, agrees with the service, and its proxy passes on what it should."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import urllib3
import yaml

from tests.service.test_server import LONG_S, Running, running
from tests.waiting import eventually
from threadcast.core.settings import Settings
from threadcast.service.keys import add_key
from threadcast.service.settings import ServiceSettings

pytestmark = pytest.mark.system

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yml").read_text())
CADDY = Path(sys.executable).with_name("caddy")


def test_the_compose_file_fits_the_schema_of_compose() -> None:
    schema = json.loads((Path(__file__).parent / "vendor" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_the_settings_are_settings_of_the_service_and_compose_waits_for_its_grace(tmp_path: Path) -> None:
    service, proxy = COMPOSE["services"]["service"], COMPOSE["services"]["proxy"]
    read = Settings.read({}, directory=tmp_path, environment=service["environment"])
    settings = ServiceSettings.from_settings(read)
    assert (settings.access_log, settings.log_format, settings.rate_limit) == (True, "json", "6000/minute")
    assert int(service["stop_grace_period"].removesuffix("s")) >= settings.stops_within_s + 5
    assert settings.trusted_proxies == proxy["networks"]["web"]["ipv4_address"]
    assert proxy["environment"]["UPSTREAM"] == f"service:{read['service.port']}"
    kept = re.search(r"keepalive (\d+)s", (DEPLOY / "compose" / "Caddyfile").read_text())
    assert kept is not None
    assert int(kept[1]) < settings.receive_s  # or the service closes connections that the proxy is about to use


@dataclass
class Proxied:
    """A service behind the proxy, and how to ask it through that."""

    server: Running
    port: int
    http: urllib3.PoolManager
    key: str

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> urllib3.BaseHTTPResponse:
        sent = {"Authorization": f"Bearer {self.key}", **{name.replace("_", "-"): v for name, v in headers.items()}}
        return self.http.request(
            method, f"https://localhost:{self.port}{path}", body=body, headers=sent, timeout=LONG_S, retries=False
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def proxied(settings: ServiceSettings, tmp_path: Path) -> Iterator[Proxied]:
    """The real proxy with the file of `deploy/`, in front of a real service that trusts it."""
    token, port = add_key(tmp_path / "keys.json", "ci", ["read"]), free_port()
    (tmp_path / "threadcast.toml").write_text(
        '[service]\naccess_log = true\nlog_format = "json"\ntrusted_proxies = "127.0.0.1"\nmax_body_bytes = 1000\n'
    )
    with running(settings, tmp_path, "--keys", str(tmp_path / "keys.json")) as server:
        environment = {
            **os.environ, "SITE": "localhost", "UPSTREAM": server.url.removeprefix("http://"), "HTTPS_PORT": str(port),
            "HTTP_PORT": str(free_port()), "XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        }  # fmt: skip
        with (tmp_path / "caddy.log").open("w") as log:
            caddy = subprocess.Popen(
                [CADDY, "run", "--config", DEPLOY / "compose" / "Caddyfile", "--adapter", "caddyfile"],
                env=environment, stderr=log, stdout=log, cwd=tmp_path,
            )  # fmt: skip
        try:
            root = tmp_path / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
            assert eventually(root.exists, LONG_S), (tmp_path / "caddy.log").read_text()
            made = Proxied(server, port, urllib3.PoolManager(ca_certs=str(root)), token)

            def answers() -> bool:
                with contextlib.suppress(urllib3.exceptions.HTTPError):
                    return made.ask("GET", "/health/live").status == 200
                return False

            assert eventually(answers, LONG_S), (tmp_path / "caddy.log").read_text()
            yield made
        finally:
            caddy.terminate()
            caddy.wait(LONG_S)


def test_the_proxy_passes_requests_and_the_services_own_limits_on(proxied: Proxied) -> None:
    answer = proxied.ask("GET", "/v1/info", X_Request_Id="ask-1", X_Forwarded_For="203.0.113.9")
    assert (answer.status, answer.headers["X-Request-Id"]) == (200, "ask-1")
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
    long = proxied.ask("POST", "/v1/predictions", b"x" * 2000, X_Request_Id="ask-2")
    assert (long.status, long.headers["Content-Type"]) == (413, "application/problem+json")
    assert long.json()["reference"] == "ask-2"
    assert proxied.ask("GET", "/metrics").status == 404  # for Prometheus only, which asks the service
    proxied.server.end()
    lines: list[dict[str, Any]] = [json.loads(line) for line in proxied.server.errors.splitlines()]
    (asked,) = [line for line in lines if line.get("request_id") == "ask-1"]
    assert asked["client"] == "127.0.0.1"  # what the client wrote into X-Forwarded-For is not passed on
