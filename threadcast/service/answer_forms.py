"""The media types of answers with large tables: JSON, or Arrow where the request accepts it and pyarrow is there."""

from __future__ import annotations

from flask import request

from threadcast.prediction import arrow_curves
from threadcast.service.answers import ARROW, JSON
from threadcast.service.problems import Problem

FORMS = (JSON, ARROW)
"""JSON first: a request that accepts both alike gets it."""


def accepted_form() -> str:
    """Return the media type of `FORMS` that the current request prefers; Problem 406 where it accepts none of them."""
    if "Accept" not in request.headers:
        return JSON
    offered = FORMS if arrow_curves.is_available() else (JSON,)
    found = request.accept_mimetypes.best_match(offered)
    if found is None:
        named = " and as ".join(offered)
        raise Problem(406, f"this is offered as {named}; Accept names neither", pointer="/Accept", where="header")
    return found
