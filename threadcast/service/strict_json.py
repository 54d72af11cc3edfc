"""Strict JSON (RFC 8259): UTF-8, no NaN, no number beyond a double, no lone surrogates, no member twice."""

from __future__ import annotations

import json
import math
import re
import threading
from typing import Any, NoReturn

import orjson
from flask import Request, current_app, request
from flask.json.provider import JSONProvider
from pydantic_core import from_json
from werkzeug.exceptions import RequestEntityTooLarge

from threadcast.core.json_reading import unique_members
from threadcast.service.deadlines import deadline, too_late
from threadcast.service.problems import Problem

_LARGE = re.compile(rb"[0-9][eE]\+?0*[0-9]{3}|[0-9]{200}")
"""Matches every text that may have a number that overflows; only such texts are checked further."""


class StrictJson(JSONProvider):
    """Reads and writes JSON for the whole app; floats survive both ways to the last bit."""

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """JSON text without spaces; ValueError for numbers that JSON does not have."""
        return json.dumps(obj, **{"allow_nan": False, "separators": (",", ":"), **kwargs})

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """The document in `s`; ValueError on anything that is not strict JSON. There are no `kwargs`."""
        raw = s.encode() if isinstance(s, str) else s
        document = from_json(raw, allow_inf_nan=False)
        if _LARGE.search(raw) is not None:
            json.loads(raw, parse_float=_finite, parse_int=_finite)
        if not _surely_unique(raw, document):
            json.loads(raw, object_pairs_hook=unique_members)
        return document


def _surely_unique(raw: bytes, document: Any) -> bool:
    """Whether `document`, read from `raw`, shows that no object has a member twice. It does where `raw` has no escaped
    colon: each member has a colon, and of those that come twice the reader keeps one only."""
    try:
        return raw.count(b":") == orjson.dumps(document).count(b":") and b"\\u003" not in raw
    except orjson.JSONEncodeError:  # integers beyond 64 bits, or deep nesting
        return False


LONG_BYTES = 1 << 20
"""Bodies of more bytes are decoded one at a time: nothing else runs meanwhile, so others get their turn in between."""

_one_long_body = threading.Lock()


class JsonRequest(Request):
    """A request that answers a body that is not JSON with a problem, which says what is wrong with it."""

    def get_data(self, *args: Any, **kwargs: Any) -> Any:
        """The body.

        Status 413 for one of unknown length that reaches the limit, which werkzeug would only cut short.
        """
        data = super().get_data(*args, **kwargs)
        limit = self.max_content_length
        if self.content_length is None and limit is not None and len(data) >= limit:
            raise RequestEntityTooLarge
        return data

    def get_json(self, *args: Any, **kwargs: Any) -> Any:
        """The document in the body.

        Problem 413, before it is decoded, for one of too many values, 503 where its turn does not come in time.
        A decoded value may take a hundred times its bytes, and nothing else runs while a body is decoded.
        """
        data, most = self.get_data(), current_app.config["MAX_VALUES"]
        values = 1 + len(data) - len(data.translate(None, b",[{"))
        if values > most:
            raise Problem(413, f"the body has some {values} values; at most max_body_values={most} are allowed")
        if len(data) <= LONG_BYTES:
            return super().get_json(*args, **kwargs)
        until = deadline(current_app.config["DEADLINE_S"])
        if not _one_long_body.acquire(timeout=until.remaining_s()):
            raise too_late(until.limit_s)
        try:
            return super().get_json(*args, **kwargs)
        finally:
            _one_long_body.release()

    def on_json_loading_failed(self, e: ValueError | None) -> NoReturn:
        """Raise Problem 400 with the reason."""
        raise Problem(400, f"the body is not JSON: {e}") from e


def require_json() -> None:
    """Raise Problem 415 for a body of another type, before it is read; for `before_request`."""
    if request.method in ("POST", "PUT", "PATCH") and request.routing_exception is None:
        if not request.is_json:
            raise Problem(415, "the body must be application/json", pointer="/Content-Type", where="header")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Problem(
                415, "the body may be compressed by gzip only", pointer="/Content-Encoding", where="header",
                headers={"Accept-Encoding": "gzip, identity"},
            )  # fmt: skip


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]}... is beyond the range of a double")
    return number
