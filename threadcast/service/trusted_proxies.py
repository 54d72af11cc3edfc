"""Believes `X-Forwarded-*` headers only from named proxies; from anybody else these headers are removed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from werkzeug.middleware.proxy_fix import ProxyFix

from threadcast.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

FORWARDED = (
    "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT",
    "HTTP_X_FORWARDED_PREFIX", "HTTP_X_REAL_IP", "HTTP_FORWARDED",
)  # fmt: skip
"""Headers with which a proxy says what it was asked, and by whom; the last two are believed from nobody."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks_of(text: str) -> tuple[Network, ...]:
    """Return the networks in a text such as "10.0.0.7, 192.168.0.0/24, ::1", of "none" none; ConfigError otherwise."""
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return tuple(ipaddress.ip_network(part) for part in parts)
    except ValueError as error:
        raise ConfigError(
            f"service.trusted_proxies is {text!r}: {error}; give addresses or networks, separated by commas"
        ) from error


class TrustedProxies:
    """A WSGI application that serves `app`.

    For requests from `proxies`, client, scheme, host, port and prefix are those in the last value of each
    `X-Forwarded-*` header (werkzeug's `ProxyFix`): what the proxy itself has added.
    """

    def __init__(self, app: WSGIApplication, proxies: Iterable[Network]) -> None:
        self._app, self._proxies = app, tuple(proxies)
        self._fixed = ProxyFix(app, x_for=1, x_proto=1, x_host=1, x_port=1, x_prefix=1)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        trusted = self._proxies and self._trusts(environ.get("REMOTE_ADDR", ""))
        for name in FORWARDED[-2:] if trusted else FORWARDED:
            environ.pop(name, None)
        return (self._fixed if trusted else self._app)(environ, start_response)

    def _trusts(self, address: str) -> bool:
        try:
            client = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(client, ipaddress.IPv6Address) and client.ipv4_mapped is not None:
            client = client.ipv4_mapped
        return any(client in network for network in self._proxies)
