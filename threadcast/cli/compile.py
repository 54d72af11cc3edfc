"""`threadcast compile`: compiles beforehand what is otherwise compiled beside the first steps and plans."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click

from threadcast.cli.options import common
from threadcast.cli.output import Output, table
from threadcast.core.settings import Settings


@click.command()
@common
def command(output: Output, settings: Settings) -> None:
    """Compile the planner's loops and the native engine for this machine; what is compiled already stays.

    Without it they are compiled when they are first needed: the engine at low priority beside the first steps, which
    run as PyTorch until then. Run it once after an installation or an upgrade, or when a container image is built. It
    takes about a minute of a core, and needs a C++ compiler and the extra `engine` for the engine, and the extra `plan`
    for the planner.
    """
    parts: list[dict[str, Any]] = []
    for part in _PARTS:
        if find_spec(part.package) is None:
            parts.append({"part": part.name, "state": f"left out: {part.package} is not installed", "took_s": None})
            continue
        begun_s = time.perf_counter()
        with output.progress(f"compiling the {part.name}"):
            state = "compiled" if part.compile_it() else "was compiled before"
        parts.append({"part": part.name, "state": state, "took_s": time.perf_counter() - begun_s})
    output.result({"parts": parts}, table(["part", "state", "took_s"], [list(part.values()) for part in parts]))


@dataclass(frozen=True, slots=True)
class _Part:
    """Something to compile, and the package that it is for. `compile_it` returns False where that was done before."""

    name: str
    package: str
    compile_it: Callable[[], bool]


def _planner() -> bool:
    from threadcast.scheduler.compile_planner import compile_planner, is_compiled

    if is_compiled():
        return False
    compile_planner()
    return True


def _engine() -> bool:
    from threadcast.runtime.engine.native.library import is_compiled, native_library

    if is_compiled():
        return False
    native_library()
    return True


_PARTS = (_Part("planner", "numba", _planner), _Part("native engine", "torch", _engine))
