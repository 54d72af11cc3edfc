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
    return _compiled(function, inline=False)


def inlined(function: F) -> F:
    """Compile `function` as a part of the compiled functions that call it, for helpers of inner loops.

    A call of its own would take up to twice as long as the helper: it counts every array of a tuple as used and unused
    again, and the compiler no longer knows which indices cannot be negative.
    """
    return _compiled(function, inline=True)


def _compiled(function: F, *, inline: bool) -> F:
    if numba is None:
        return function
    try:
        machine_code: F = numba.njit(cache=True, forceinline=inline)(function)
    except RuntimeError:  # no folder can be written, as in a container whose files are read-only
        machine_code = numba.njit(forceinline=inline)(function)
    return machine_code


UNCOMPILED = 100
"""Times that loops take longer where they are not compiled."""
