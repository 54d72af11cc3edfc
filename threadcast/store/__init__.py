"""The measurement store, and the files in which measurements are read and written.

`Store` is imported when it is first used, because it needs SQLAlchemy and the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadcast.store.store import Counts, Store

__all__ = ["Counts", "Store"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from threadcast.store import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
