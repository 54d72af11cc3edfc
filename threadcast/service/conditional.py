"""ETag and If-None-Match: who has an answer already is told so in place of getting it again."""

from __future__ import annotations

import hashlib

from apiflask import APIFlask
from flask import Response, request

_TAGGED = ("/v1/", "/openapi.json")


def etag_of(content: bytes) -> str:
    """A strong tag: equal for equal content, in whatever process."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def matches(etag: str) -> bool:
    """Whether the current request's If-None-Match names this tag."""
    sent = request.headers.get("If-None-Match")
    return sent is not None and (sent == etag or request.if_none_match.contains_weak(etag.strip('"')))


def tag(response: Response) -> Response:
    """Tag what a GET under /v1 answers, and answer 304 without content where the client has it; for `after_request`."""
    if request.method not in ("GET", "HEAD") or response.status_code != 200 or not request.path.startswith(_TAGGED):
        return response
    if "ETag" not in response.headers:
        response.headers["ETag"] = etag_of(response.get_data())
        response.headers.setdefault("Cache-Control", "no-cache")  # ask each time whether it is still so
    if matches(response.headers["ETag"]):
        response.status_code = 304
        response.set_data(b"")
        for name in ("Content-Type", "Content-Length"):
            response.headers.pop(name, None)
    return response


def install(app: APIFlask) -> None:
    """Tag the answers of `app`."""
    app.after_request(tag)
