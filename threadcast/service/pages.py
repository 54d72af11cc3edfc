"""The page with the API reference, and the security headers of all pages."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response, current_app, render_template

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer. A page may load files of this service only, and has no inline scripts or styles."""

blueprint = APIBlueprint("pages", __name__, enable_openapi=False)


def secure(response: Response) -> Response:
    """Add `SECURITY_HEADERS` to an answer."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.add(name, value)
    return response


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
    return render_template("docs.html", spec=spec, operations=operations, schemas=spec["components"]["schemas"])
