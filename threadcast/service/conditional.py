"""ETag and If-None-Match: a client that has the current answer gets 304 in place of it."""

from __future__ import annotations

import hashlib

import numpy as np
from apiflask import APIFlask
from flask import Response, request

from threadcast.core import Case, CurveTable
from threadcast.core.curve_table import ARRAYS
from threadcast.core.identity_cache import CachedByIdentity

_TAGGED = ("/v1/", "/openapi.json")


def etag_of(content: bytes) -> str:
    """Return a strong entity tag: equal for equal content, in every process."""
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def etag_of_table(table: CurveTable, *about: str) -> str:
    """Return the strong entity tag of an answer with this table; `about` is everything else that determines it."""
    # of tens of megabytes SHA-256 takes half of BLAKE2's time on processors that have instructions for it
    digest = hashlib.sha256(repr((table.model, about)).encode() + _text(table.cases))
    for name in ARRAYS:
        digest.update(np.ascontiguousarray(getattr(table, name)).data)
    return f'"{digest.hexdigest()[:24]}"'


@CachedByIdentity
def _text(cases: tuple[Case, ...]) -> bytes:
    return " ".join(map(str, cases)).encode()


def matches(etag: str) -> bool:
    """Whether the If-None-Match header of the current request has this tag: the answer is then 304 to GET, and 412 to
    other methods (RFC 9110, 13.1.2)."""
    sent = request.environ.get("HTTP_IF_NONE_MATCH")
    return sent is not None and (sent == etag or request.if_none_match.contains_weak(etag.strip('"')))


def tag(response: Response) -> Response:
    """Add an ETag to the answer of a GET under /v1; turn it into 304 where the client has it. For `after_request`."""
    if response.status_code != 200 or request.method not in ("GET", "HEAD") or not request.path.startswith(_TAGGED):
        return response
    if "ETag" not in response.headers:
        response.headers["ETag"] = etag_of(response.get_data())
        response.headers.setdefault("Cache-Control", "no-cache")  # a cache must ask each time
    if matches(response.headers["ETag"]):
        response.status_code = 304
        response.set_data(b"")
        for name in ("Content-Type", "Content-Length"):
            response.headers.pop(name, None)
    return response


def install(app: APIFlask) -> None:
    """Add ETags to the answers of `app`."""
    app.after_request(tag)
