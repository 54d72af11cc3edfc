"""The page with the API reference, and the security headers of all answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from apiflask import APIBlueprint
from flask import current_app, render_template, request

from threadcast.service.answers import HOST

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer. A page may load files of this service only, and has no inline scripts or styles."""

blueprint = APIBlueprint("pages", __name__, enable_openapi=False)


def secured(app: WSGIApplication) -> WSGIApplication:
    """Return `app` with `SECURITY_HEADERS` added to each of its answers."""
    added = list(SECURITY_HEADERS.items())

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return app(environ, lambda status, headers, *info: start_response(status, headers + added, *info))

    return answer


@blueprint.get("/docs")
def docs() -> str:
    """The API's reference, rendered from the OpenAPI description."""
    spec = current_app._get_spec()  # type: ignore[attr-defined]  # what APIFlask's own pages call
    operations = [
        (method.upper(), path, operation)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict) and "responses" in operation
    ]
    return render_template("docs.html", spec=spec, operations=operations, parts=spec["components"], blocks=_blocks)


def _blocks(text: str) -> list[tuple[bool, str]]:
    """The paragraphs of a description, and whether each is code, indented in Markdown; examples ask this service."""
    parts = [part for part in text.split("\n\n") if part.strip()]
    host = request.host if request.scheme == "http" else request.host_url.rstrip("/")
    return [(part.startswith("    "), part.strip().replace(HOST, host)) for part in parts]
