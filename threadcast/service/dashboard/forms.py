"""Forms that change something: accepted only from pages of this service, with an API key in a field of the form."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import request

from threadcast.service.problems import Problem

KEY_FIELD = "key"
MAX_FORM_BYTES = 10_000


def accept_form() -> None:
    """Use the API key in a dashboard form as the request's `Authorization` header.

    It is for `before_request`, before the part that checks keys. A page without scripts cannot set that header, so the
    form's field `key` replaces it, and the password that a browser sends by itself. Problem 403 for a form that a page
    of another site sent: browsers tell this in `Sec-Fetch-Site`, older ones in `Origin`.
    """
    if request.method != "POST" or request.blueprint != "dashboard":
        return
    request.max_content_length = MAX_FORM_BYTES
    if not _from_here():
        raise Problem(403, "this form was not sent by a page of this service; open the page and send it from there")
    key = request.form.get(KEY_FIELD, "").strip()
    if key:
        if not key.isascii() or not key.isprintable():
            raise Problem(403, "a key has letters, digits and signs of ASCII only")
        request.environ["HTTP_AUTHORIZATION"] = f"Bearer {key}"


def _from_here() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    return urlsplit(request.headers.get("Origin", "")).netloc == request.host
