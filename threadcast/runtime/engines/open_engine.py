"""Which engine serves here: the native one, or where it cannot, the Python one."""

from __future__ import annotations

import logging
from functools import cache

from threadcast.capture.capture import Captured
from threadcast.core import Machine, Plan
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engines.engine import PlanEngine
from threadcast.runtime.engines.native.engine import NativeEngine
from threadcast.runtime.engines.native.library import native_library
from threadcast.runtime.engines.python_engine import PythonEngine
from threadcast.scheduler.problem.engine_costs import NATIVE_ENGINE, PYTHON_ENGINE, EngineCosts

_logger = logging.getLogger("threadcast")


def open_engine(captured: Captured, plan: Plan, machine: Machine) -> PlanEngine:
    """An engine that runs the steps of `captured` by `plan`; why it is not native is logged once for each reason."""
    if has_native_engine():
        try:
            return NativeEngine(captured, plan, machine)
        except ExecutionError as error:
            _say_once(str(error))
    return PythonEngine(captured, plan, machine)


def engine_costs() -> EngineCosts:
    """What the engine that serves here adds to an op's own time."""
    return NATIVE_ENGINE if has_native_engine() else PYTHON_ENGINE


@cache
def has_native_engine() -> bool:
    """Whether the native engine serves here; the first call may compile it."""
    try:
        native_library()
    except ExecutionError as error:
        _say_once(str(error))
        return False
    return True


@cache
def _say_once(reason: str) -> None:
    _logger.warning("the Python engine serves, which is slower with small ops: %s", reason)
