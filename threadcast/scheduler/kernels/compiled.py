"""Compiling loops with numba, where it is installed; elsewhere they run as they are, some 100 times slower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    numba = None

COMPILED = numba is not None
"""Whether loops are compiled. The extra `plan` installs what it takes."""


def compiled(function: F) -> F:
    """Compile `function` when it is first called for its types; the machine code is kept on disk where that can be."""
    if numba is None:
        return function
    try:
        made: F = numba.njit(cache=True)(function)
    except RuntimeError:  # no folder can be written, as in a container whose files are read-only
        made = numba.njit(function)
    return made


UNCOMPILED = 100
"""Times that loops take longer where they are not compiled."""
