"""The media types of answers with large tables: JSON, or Arrow where the request accepts it and pyarrow is there."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flask import request
from werkzeug.http import parse_list_header

from threadcast.prediction import arrow_curves
from threadcast.service.answers import ARROW, JSON
from threadcast.service.problems import Problem

FORMS = (JSON, ARROW)
"""JSON first: a request that accepts both alike gets it."""

_WEIGHT = re.compile(r"q=(0?\.[0-9]+|[01](\.0*)?)")


def accepted_form() -> str:
    """Return the media type of `FORMS` that the current request prefers; Problem 406 where it accepts none of them.

    Parameters of media ranges are passed over (RFC 9110, 12.5.1): neither form has any. Without a range, as in an empty
    header, anything is accepted.
    """
    if not (ranges := _ranges(request.headers.get("Accept", ""))):
        return JSON
    offered = FORMS if arrow_curves.is_available() else (JSON,)
    found = max(offered, key=lambda form: _quality(form, ranges))
    if not _quality(found, ranges):
        named = " and as ".join(offered)
        raise Problem(406, f"this is offered as {named}; Accept names neither", pointer="/Accept", where="header")
    return found


def _ranges(accept: str) -> dict[str, float]:
    """The quality of each media range in a header; one that is no number from 0 to 1 is 1."""
    found: dict[str, float] = {}
    for one in parse_list_header(accept):
        named, *parameters = (part.strip().lower() for part in one.split(";"))
        weights = [part[2:] for part in parameters if _WEIGHT.fullmatch(part)]
        quality = float(weights[-1]) if weights else 1.0
        found[named] = max(found.get(named, 0.0), quality)
    return found


def _quality(form: str, ranges: Mapping[str, float]) -> float:
    """How much a form is wanted, by the most specific range that it is in."""
    kind = form.partition("/")[0]
    return next((ranges[one] for one in (form, f"{kind}/*", "*/*", "*") if one in ranges), 0.0)
