"""Chooses the engine on this machine: the native one, or the Python one where the native one cannot run."""

from __future__ import annotations

import logging
from functools import cache

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, Plan
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.engine import NativeEngine
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.engine.python_engine import PythonEngine
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE, PYTHON_ENGINE, EngineCosts

_logger = logging.getLogger("threadcast")


def open_engine(captured: Captured, plan: Plan, machine: Machine) -> Engine:
    """Return an engine that runs the steps of `captured` by `plan`; logs once why it is not the native one."""
    if has_native_engine():
        try:
            return NativeEngine(captured, plan, machine)
        except ExecutionError as error:
            _say_once(str(error))
    return PythonEngine(captured, plan, machine)


def engine_costs() -> EngineCosts:
    """Return the times that the engine on this machine adds to an op's own time."""
    return NATIVE_ENGINE if has_native_engine() else PYTHON_ENGINE


@cache
def has_native_engine() -> bool:
    """Return whether the native engine can run on this machine; the first call may compile it."""
    try:
        native_library()
    except ExecutionError as error:
        _say_once(str(error))
        return False
    return True


@cache
def _say_once(reason: str) -> None:
    _logger.warning("the Python engine serves, which is slower with small ops: %s", reason)
