"""Strict JSON (RFC 8259): UTF-8, no NaN, no number beyond a double, no lone surrogates, no member twice."""

from __future__ import annotations

import json
import math
import re
import threading
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import orjson
from flask import Request, current_app, request
from flask.json.provider import JSONProvider
from werkzeug.exceptions import RequestEntityTooLarge

from threadcast.core.json_reading import unique_members
from threadcast.service.deadlines import deadline, too_late
from threadcast.service.problems import Problem

_SHAPE_OF_NUMBERS = bytes.maketrans(b"123456789" + b":[- \t\r\n", b"0" * 9 + b"," * 7)
_LONG = b"," + b"0" * 18
"""Where so many digits follow what may be before a number, it may be an integer beyond 64 bits, which orjson would
round."""

_SUSPICIOUS = re.compile(rb"\\u[dD][89a-fA-F]|[0-9][eE]\+?0*[0-9]{3}|[0-9]{308}")
"""Matches every text that may have a lone surrogate or a number that overflows; only such texts are checked further."""

MOST_NESTED = 1024
"""Levels of arrays and objects that a document may have: what orjson allows. Python's own limit is no measure, as any
library in the process may have raised it."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


class StrictJson(JSONProvider):
    """Reads and writes JSON for the whole app; floats survive both ways to the last bit."""

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        """JSON text without spaces; ValueError for numbers that JSON does not have."""
        return json.dumps(obj, **{"allow_nan": False, "separators": (",", ":"), **kwargs})

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """The document in `s`; ValueError on anything that is not strict JSON. There are no `kwargs`."""
        raw = s.encode() if isinstance(s, str) else s
        try:
            document = _read(raw)
            if not _surely_unique(raw, document):
                json.loads(raw, object_pairs_hook=unique_members)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except UnicodeEncodeError:
            raise ValueError("a string holds half of a surrogate pair") from None
        return document


def _read(raw: bytes) -> Any:
    """The document in `raw`; RecursionError for deep nesting, UnicodeEncodeError for half of a surrogate pair."""
    if b"\\" not in raw and _LONG not in b"," + raw.translate(_SHAPE_OF_NUMBERS):
        with suppress(orjson.JSONDecodeError):  # what is wrong with it, the slow way says
            return orjson.loads(raw)
    if _too_deep(raw):
        raise RecursionError
    text = raw.decode()
    if _SUSPICIOUS.search(raw) is None:
        return _DECODER.decode(text)
    document = json.loads(text, parse_constant=_no_constant, parse_float=_finite(float), parse_int=_finite(int))
    json.dumps(document, ensure_ascii=False).encode()
    return document


def _too_deep(raw: bytes) -> bool:
    """Whether `raw` has more than MOST_NESTED arrays and objects inside each other."""
    if raw.count(b"[") + raw.count(b"{") <= MOST_NESTED:
        return False
    brackets = np.frombuffer(_STRINGS.sub(b"", raw).translate(None, _NO_BRACKETS), np.uint8)
    levels = np.cumsum(np.where(np.isin(brackets, list(b"[{")), 1, -1))
    return bool(np.max(levels, initial=0) > MOST_NESTED)


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
    """Raise Problem 415 for a body of another type, before it is read; for `before_request`.

    Requests of dashboard pages are not checked, because these send forms.
    """
    if request.blueprint == "dashboard":
        return
    if request.method in ("POST", "PUT", "PATCH") and request.routing_exception is None:
        if not request.is_json:
            raise Problem(415, "the body must be application/json", pointer="/Content-Type", where="header")
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Problem(
                415, "the body may be compressed by gzip only", pointer="/Content-Encoding", where="header",
                headers={"Accept-Encoding": "gzip, identity"},
            )  # fmt: skip


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _finite(kind: type[float] | type[int]) -> Any:
    def parse(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError(f"the number {text[:20]}... is beyond the range of a double")
        return kind(text)

    return parse
