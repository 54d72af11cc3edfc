"""Imports xgboost when a model needs it, in one thread at a time."""

from __future__ import annotations

from threading import Lock
from typing import Any

_importing = Lock()


def xgboost_library() -> Any:
    """Return the module. Its own modules import each other: a second thread could find one of them half made."""
    with _importing:
        import xgboost
    return xgboost
