"""One call of a WSGI application: the environment of a complete request, and its whole answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from tornado.httputil import HTTPHeaders, RequestStartLine

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class Place(NamedTuple):
    """What all requests of one connection have in common."""

    client: str
    """The client's address."""
    host: str
    """Where the server listens."""
    port: int
    scheme: str
    """http or https."""


def environ_of(line: RequestStartLine, headers: HTTPHeaders, body: bytes | bytearray, place: Place) -> dict[str, Any]:
    """Return the WSGI environment (PEP 3333) of a request; ValueError for a target that is no URL.

    A body has its length, whatever framed it. The host that a target names counts in place of the header's (RFC 9112,
    3.2.2). Headers with "_" in their names are left out: in the environment they
    would look like those with "-", which a proxy may have checked.
    """
    host, path, query = _parts_of(line.path)
    environ = {
        "REQUEST_METHOD": line.method, "SCRIPT_NAME": "", "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query, "RAW_URI": line.path, "SERVER_PROTOCOL": line.version, "REMOTE_ADDR": place.client,
        "SERVER_NAME": place.host, "SERVER_PORT": str(place.port), "wsgi.version": (1, 0),
        "wsgi.url_scheme": place.scheme, "wsgi.input": BytesIO(body), "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr, "wsgi.multithread": True, "wsgi.multiprocess": True, "wsgi.run_once": False,
    }  # fmt: skip
    for name, value in headers.items():
        if "_" not in name:
            environ["HTTP_" + name.replace("-", "_").upper()] = value
    if host:
        environ["HTTP_HOST"] = host
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    framed = environ.pop("HTTP_CONTENT_LENGTH", None) is not None
    if environ.pop("HTTP_TRANSFER_ENCODING", None) is not None or framed:
        environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def call(app: WSGIApplication, environ: dict[str, Any]) -> Answer:
    """Return the application's whole answer."""
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        started[:] = status, headers
        return parts.append

    parts: list[bytes] = []
    answer: Iterable[bytes] = app(environ, start_response)
    try:
        parts.extend(answer)
    finally:
        if hasattr(answer, "close"):
            answer.close()
        environ["wsgi.input"].close()  # an error and its traceback can hold the request until they are collected
    status, headers = started
    code, _, reason = status.partition(" ")
    return Answer(int(code), reason, headers, parts[0] if len(parts) == 1 else b"".join(parts))


def _parts_of(target: str) -> tuple[str, str, str]:
    """The host, if it names one, the path and the query of a request's target in any of its forms (RFC 9112, 3.2)."""
    if target.startswith("/") or target == "*":
        path, _, query = target.partition("?")
        return "", path, query
    named = urlsplit(target)
    return named.netloc, named.path or "/", named.query
