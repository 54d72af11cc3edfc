"""A call of a WSGI application leaves nothing of the request behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
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


@pytest.mark.parametrize(
    ("target", "host", "path", "query"),
    [
        ("http://evil.example/a?b", "evil.example", "/a", "b"), ("http://[::1]:80", "[::1]:80", "/", ""),
        ("/a?http://b/", "localhost", "/a", "http://b/"), ("*", "localhost", "*", ""),
    ],
)  # fmt: skip
def test_the_host_that_a_target_names_counts_in_place_of_the_header(
    target: str, host: str, path: str, query: str
) -> None:
    line, headers = RequestStartLine("GET", target, "HTTP/1.1"), HTTPHeaders({"Host": "localhost"})
    environ = environ_of(line, headers, b"", Place("127.0.0.1", "127.0.0.1", 80, "http"))
    assert (environ["HTTP_HOST"], environ["PATH_INFO"], environ["QUERY_STRING"]) == (host, path, query)
