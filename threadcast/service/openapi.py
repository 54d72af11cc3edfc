"""The OpenAPI description of the whole service as a document."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from threadcast.service.app import create_app
from threadcast.service.settings import ServiceSettings


def description() -> str:
    """The OpenAPI description as JSON text, the same for every store and registry."""
    with tempfile.TemporaryDirectory() as directory:
        app = create_app(ServiceSettings(store=Path(directory) / "none.sqlite", models=Path(directory)))
        try:
            return json.dumps(app.spec, indent=1, sort_keys=True) + "\n"
        finally:
            app.extensions["threadcast"].store.close()
