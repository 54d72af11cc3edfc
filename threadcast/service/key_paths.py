"""Keys of ops in paths: their kinds may have any character, "/" too."""

from __future__ import annotations

from urllib.parse import quote

from werkzeug.routing import BaseConverter


class KeyConverter(BaseConverter):
    """The rest of a path. "/" is escaped in links, as a browser would resolve the ".." of `a/../b`; both are read."""

    regex = r"[\s\S]+"
    part_isolating = False

    def to_url(self, value: str) -> str:
        """The key as one segment of a path."""
        return quote(value, safe="")
