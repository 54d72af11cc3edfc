"""Forms that change something: only from pages of this service, with the key in the form or from the browser."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import request

from threadcast.service.problems import Problem

KEY_FIELD = "key"
MAX_FORM_BYTES = 10_000


def accept_form() -> None:
    """For `before_request`, before whatever looks at keys: let a dashboard form pass as a request with a header.

    A page without scripts cannot set `Authorization`; its form's field `key` takes the place of that header, and of
    the password that a browser sends by itself. 403 for
    a form that another site's page sent: browsers say so in `Sec-Fetch-Site`, older ones in `Origin`.
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
