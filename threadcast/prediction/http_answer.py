"""Reads HTTP answers that cannot be trusted: they may be too long, compressed, cut off or of another type."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from urllib3.response import BaseHTTPResponse

from threadcast.core.errors import ServiceError, ServiceRefused, ServiceUnavailable
from threadcast.core.secret import Secret
from threadcast.prediction.retries import retry_after_s

JSON = "application/json"

SHOWN_CHARACTERS = 200
"""Characters of a refusal's text that the error repeats."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service, of media type `form`."""

    content: bytes
    form: str = JSON


def accept(forms: Sequence[str]) -> str:
    """Return the header Accept of a request for these media types, the first of them preferred."""
    first, *others = forms
    return ", ".join([first, *(f"{form};q=0.5" for form in others)])


def read_answer(
    response: BaseHTTPResponse,
    *,
    max_bytes: int,
    secret: Secret | None,
    status: int = 200,
    forms: Sequence[str] = (JSON,),
) -> Answer:
    """Return an answer of one of these media types of at most `max_bytes`, both compressed and decompressed.

    Raises ServiceRefused for another status than `status`,
    ServiceUnavailable for an answer that breaks off, ServiceError for one that is longer, of another type or damaged.
    """
    content = _received(response, max_bytes)
    if response.status != status:
        said = _said(content)
        raise ServiceRefused(
            f"the service answered {response.status}: {secret.hidden_in(said) if secret else said}",
            status=response.status, retry_after_s=retry_after_s(response.headers.get("Retry-After")),
        )  # fmt: skip
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type not in forms:
        raise ServiceError(f"the answer is {media_type[:60] or 'of no type'}, not {' or '.join(forms)}")
    return Answer(_unpacked(content, response.headers.get("Content-Encoding", ""), max_bytes), media_type)


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
