"""The response of answers whose body and headers are complete when it is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Response

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


class WholeAnswer(Response):
    """A body in memory with a length, no Location, and nothing to do when it is sent.

    werkzeug's own copies the headers of every response and looks through them for those that it would complete, which
    takes as long as finding a kept curve.
    """

    def get_wsgi_response(self, environ: WSGIEnvironment) -> tuple[Iterable[bytes], str, list[tuple[str, str]]]:
        if self.status_code != 200 or environ["REQUEST_METHOD"] == "HEAD":
            return super().get_wsgi_response(environ)
        return self.iter_encoded(), self.status, self.headers.to_wsgi_list()
