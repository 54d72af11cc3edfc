"""Checks the host that a request names, in its Host header and in a target of absolute form (RFC 9112, 3.2)."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from apiflask import APIFlask
from flask import request

from threadcast.service.problems import Problem

DEFAULT_PORTS = {"http": "80", "https": "443"}
"""Default port of URLs by scheme. This service does not answer targets of other schemes."""

_HOST = re.compile(r"[A-Za-z0-9._~%!$&'()*+;=:\[\]-]+")
"""Characters of a host and a port (RFC 3986, 3.2), without the comma by which WSGI joins several headers."""


def install(app: APIFlask) -> None:
    """Make `app` refuse requests that do not name one host, before their body and key are read."""
    app.before_request(require_one_host)


def require_one_host() -> None:
    """Raise Problem 400 unless exactly one host is named, 421 where the target names another host than Host does.

    HTTP/1.0 may leave Host out; then the address that the connection came to is used.
    """
    environ = request.environ
    host = environ.get("HTTP_HOST")
    if host is None and environ["SERVER_PROTOCOL"] != "HTTP/1.0":
        raise _problem(400, "HTTP/1.1 needs a Host header")
    if host is not None and not _HOST.fullmatch(host):
        raise _problem(400, f"Host must name one host, not {host[:80]!r}")
    target: str = environ.get("RAW_URI", "")
    if "://" not in target or target.startswith("/"):
        return
    scheme, named = urlsplit(target)[:2]
    port = DEFAULT_PORTS.get(scheme)
    if port is None or _with_port(named, port) != _with_port(host or request.host, port):
        raise _problem(421, f"the target is on {named[:80]!r}, and Host is {host or request.host!r}")


def _with_port(host: str, default: str) -> str:
    """The host in lower case with its port, so that equal texts mean the same place."""
    name, colon, port = host.rpartition(":")
    if not colon or "]" in port:  # no port, or the end of an IPv6 address
        name, port = host, ""
    return f"{name.lower()}:{port or default}"


def _problem(status: int, detail: str) -> Problem:
    return Problem(status, detail, pointer="/Host", where="header")
