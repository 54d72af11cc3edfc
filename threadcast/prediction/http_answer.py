"""Reads HTTP answers that cannot be trusted: they may be too long, packed, cut off or of another type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from urllib3.response import BaseHTTPResponse

from threadcast.core.errors import ServiceError, ServiceRefused
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
    """Return an answer of one of these media types of at most `max_bytes`.

    Raises ServiceRefused for another status than `status`, ServiceError for an answer that is longer, packed or of
    another type.
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
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ServiceError(f"the answer is packed with {coding[:60]!r}, which was not asked for")
    return Answer(content, media_type)


def _received(response: BaseHTTPResponse, max_bytes: int) -> bytes:
    parts, left = [], max_bytes + 1
    while left and (part := response.read(left, decode_content=False)):
        parts.append(part)
        left -= len(part)
    if not left:
        raise ServiceError(f"the answer is longer than the {max_bytes} bytes that it can need")
    return b"".join(parts)


def _said(content: bytes) -> str:
    """The `detail` of a problem document, else the beginning of the answer."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    said = detail if isinstance(detail, str) else content[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
    return said[:SHOWN_CHARACTERS]
