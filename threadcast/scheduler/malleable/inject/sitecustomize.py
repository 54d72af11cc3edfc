"""Attaches the Python that starts with this folder on its path (`threadcast exec`), then runs what it stands before."""

import contextlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_HELPERS = (
    "multiprocessing.resource_tracker", "multiprocessing.spawn", "multiprocessing.forkserver",
    "threadcast.scheduler.runtime", "threadcast_native",
)  # fmt: skip


def _is_helper() -> bool:
    """Whether this is a child of a process that is attached itself: its cores are its parent's to share."""
    return any(name in part for part in sys.orig_argv for name in _HELPERS)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
if not _is_helper():
    try:
        from threadcast.scheduler.malleable.attach import attach

        attach(signals=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the user's program has to run
        print(f"threadcast: this process is not attached: {error}", file=sys.stderr)  # noqa: T201

_own = sys.modules.pop("sitecustomize")
with contextlib.suppress(ModuleNotFoundError):
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
sys.modules.setdefault("sitecustomize", _own)
