"""`X-Forwarded-*` headers count when a trusted proxy sends them, and are not there otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from threadcast.core.errors import ConfigError
from threadcast.service.settings import ServiceSettings
from threadcast.service.trusted_proxies import FORWARDED, TrustedProxies, networks_of

SENT = {
    "HTTP_X_FORWARDED_FOR": "198.51.100.9, 203.0.113.5", "HTTP_X_FORWARDED_PROTO": "https",
    "HTTP_X_FORWARDED_HOST": "forecasts.example", "HTTP_X_REAL_IP": "192.0.2.66", "HTTP_FORWARDED": "for=192.0.2.66",
}  # fmt: skip


def seen(proxies: str, client: str) -> dict[str, Any]:
    """The environment that the application gets of a request that `client` sends with `SENT`."""
    found: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        found.append(environ)
        return []

    here = {"REMOTE_ADDR": client, "HTTP_HOST": "10.0.0.1:8321", "wsgi.url_scheme": "http", "SERVER_NAME": "10.0.0.1"}
    TrustedProxies(app, networks_of(proxies))({**here, "SERVER_PORT": "8321", **SENT}, lambda *_: lambda _: None)
    return found[0]


@pytest.mark.parametrize(
    ("proxies", "client"),
    [
        ("10.0.0.7", "10.0.0.7"), ("192.0.2.1, 10.0.0.0/8", "10.0.0.7"), ("2001:db8::/32", "2001:db8::5"),
        ("10.0.0.7", "::ffff:10.0.0.7"),
    ],
)  # fmt: skip
def test_a_trusted_proxy_says_who_asked_it_and_for_what(proxies: str, client: str) -> None:
    found = seen(proxies, client)
    assert (found["REMOTE_ADDR"], found["wsgi.url_scheme"]) == ("203.0.113.5", "https")
    assert found["HTTP_HOST"] == "forecasts.example"
    assert not {"HTTP_X_REAL_IP", "HTTP_FORWARDED"} & found.keys()


@pytest.mark.parametrize(("proxies", "client"), [("none", "10.0.0.7"), ("10.0.0.8", "10.0.0.7"), ("10.0.0.7", "")])
def test_nobody_else_is_believed(proxies: str, client: str) -> None:
    found = seen(proxies, client)
    assert (found["REMOTE_ADDR"], found["wsgi.url_scheme"], found["HTTP_HOST"]) == (client, "http", "10.0.0.1:8321")
    assert not set(FORWARDED) & found.keys()


@pytest.mark.parametrize("text", ["proxy.example", "10.0.0.7/8", "10.0.0.300", "10.0.0.7 10.0.0.8"])
def test_what_is_no_address_or_network_is_refused(settings: ServiceSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=r"service\.trusted_proxies is"):
        replace(settings, trusted_proxies=text)
