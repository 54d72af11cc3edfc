"""Compiles loops with numba where it is installed; without numba they run as Python, about 100 times slower."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

DISABLED = "NUMBA_DISABLE_JIT"
"""Numba's own variable: with 1 in it loops run as Python."""

try:
    if os.environ.get(DISABLED, "0") not in ("", "0"):
        raise ImportError(f"{DISABLED} is set")
    import numba
except ImportError:
    numba = None

COMPILED = numba is not None
"""Whether loops are compiled. The package's extra `plan` installs numba."""


def compiled(function: F) -> F:
    """Compile `function` at its first call for each set of types; the machine code is cached on disk if possible.

    For functions that Python calls. What they call should be `helper` or `inlined`.
    """
    if numba is None:
        return function
    function = _with_sources_in_closure(function)
    try:
        machine_code: F = numba.njit(cache=True, no_cfunc_wrapper=True)(function)
    except RuntimeError:  # no folder can be written, as in a container whose files are read-only
        machine_code = numba.njit(no_cfunc_wrapper=True)(function)
    return machine_code


def helper(function: F) -> F:
    """Compile `function` as a part of the compiled functions that call it; for Python it stays a Python function.

    So it is compiled without what a call from Python would need, and once for a constant and a variable argument.
    """
    return function if numba is None else _part_of_callers(function, inline=False)


def inlined(function: F) -> F:
    """As `helper`, and the compiler puts its code in the place of every call, for helpers of inner loops.

    A call of its own would take up to twice as long as the helper: it counts every array of a tuple as used and unused
    again, and the compiler no longer knows which indices cannot be negative.
    """
    return function if numba is None else _part_of_callers(function, inline=True)


def _part_of_callers(function: F, *, inline: bool) -> F:
    from numba.extending import register_jitable

    part: F = register_jitable(forceinline=inline)(function)
    return part


def _with_sources_in_closure(function: Any) -> Any:
    """Return `function` with a variable in its closure that it does not read: a hash of all files of this folder.

    Numba finds machine code on disk by the time stamp of a function's own file and by its closure. Compiled functions
    that it calls are part of its machine code, and their files are not looked at. So without this, a function would
    run with an earlier version of a helper from another file.
    """
    code = function.__code__
    code = code.replace(co_freevars=(*code.co_freevars, "hash_of_sources"))
    closure = (*(function.__closure__ or ()), CellType(_SOURCES))
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    copied.__doc__, copied.__kwdefaults__ = function.__doc__, function.__kwdefaults__
    copied.__module__, copied.__qualname__ = function.__module__, function.__qualname__
    copied.__annotations__ = function.__annotations__
    return copied


def _hash_of_sources(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


_SOURCES = _hash_of_sources(Path(__file__).parent)

UNCOMPILED = 100
"""Ratio of a loop's time without compilation to its time with it."""
