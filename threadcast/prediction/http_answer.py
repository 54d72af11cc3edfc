"""Reads HTTP answers that cannot be trusted: they may be too long, compressed, cut off or of another type."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass

from urllib3.response import BaseHTTPResponse

from threadcast.core.errors import ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.core.secret import Secret
from threadcast.prediction.retries import retry_after_s

SHOWN_CHARACTERS = 200
"""Characters of a refusal's text that the error repeats."""

_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]{0,256}"')
"""Entity tags by RFC 9110, 8.8.3; others, and longer ones, are ignored."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service. `content` is None where nothing has changed since the answer with this `etag`."""

    content: bytes | None
    etag: str | None = None


def read_answer(
    response: BaseHTTPResponse, *, max_bytes: int, conditional: bool, secret: Secret | None, status: int = 200
) -> Answer:
    """Return a JSON answer of at most `max_bytes`, both compressed and decompressed.

    304 counts as an answer where the request was `conditional`. Raises ServiceRefused for another status than `status`,
    ServiceUnavailable for an answer that breaks off, ServiceError for one that is longer, of another type or damaged.
    """
    content = _received(response, max_bytes)
    etag = response.headers.get("ETag")
    etag = etag if etag is not None and _ETAG.fullmatch(etag) else None
    if response.status == 304 and conditional:
        return Answer(None, etag)
    if response.status != status:
        said = _said(content)
        raise ServiceRefused(
            f"the service answered {response.status}: {secret.hidden_in(said) if secret else said}",
            status=response.status, retry_after_s=retry_after_s(response.headers.get("Retry-After")),
        )  # fmt: skip
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ServiceError(f"the answer is {media_type[:60] or 'of no type'}, not application/json")
    return Answer(_unpacked(content, response.headers.get("Content-Encoding", ""), max_bytes), etag)


def _received(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    parts, left = [], max_bytes + 1
    while left and (part := response.read(left, decode_content=False)):
        parts.append(part)
        left -= len(part)
    if not left:
        raise _too_long(max_bytes)
    return b"".join(parts)


def _unpacked(content: bytes, encoding: str, max_bytes: int) -> bytes:
    coding = encoding.strip().lower()
    if coding in ("", "identity"):
        return content
    if coding != "gzip":
        raise ServiceError(f"the answer is packed with {coding[:60]!r}, which was not asked for")
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(content, max_bytes + 1)
    except zlib.error as error:
        raise ServiceError(f"the answer is no gzip: {error}") from error
    if len(unpacked) > max_bytes:
        raise _too_long(max_bytes)
    if not unpacker.eof or unpacker.unused_data:
        raise ServiceUnavailable("the packed answer breaks off, or something follows it")
    return unpacked


def _too_long(max_bytes: int) -> ServiceError:
    return ServiceError(f"the answer is longer than the {max_bytes} bytes that it can need")


def _said(content: bytes) -> str:
    """The `detail` of a problem document, else the beginning of the answer."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    said = detail if isinstance(detail, str) else content[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
    return said[:SHOWN_CHARACTERS]
