"""A call of a WSGI application leaves nothing of the request behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tornado.httputil import HTTPHeaders, RequestStartLine

from threadcast.service.wsgi_call import Place, call, environ_of


def test_a_body_is_let_go_with_the_answer_whoever_still_holds_the_request() -> None:
    line = RequestStartLine("POST", "/nowhere", "HTTP/1.1")
    headers = HTTPHeaders({"Content-Length": "4"})
    environ = environ_of(line, headers, b"body", Place("127.0.0.1", "127.0.0.1", 80, "http"))
    read = []

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        read.append(environ["wsgi.input"].read())
        start_response("404 Not Found", [])
        return [b"no"]

    answer = call(app, environ)
    assert (read, answer.status, answer.body) == ([b"body"], 404, b"no")
    assert environ["wsgi.input"].closed
