"""The time that a request may take, and how work that takes longer is stopped."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from threading import Timer
from time import monotonic
from typing import TypeVar

from flask import g, request

from threadcast.core import Case, CurveTable, Op
from threadcast.core.errors import ModelError
from threadcast.prediction.predictor import Predictor, all_differ, different_ops
from threadcast.service.problems import Problem

HEADER = "X-Deadline-S"
"""Request header with the seconds that the client waits for the answer; the setting `deadline_s` is the most."""

OPS_AT_ONCE = 512
"""Ops that are predicted between two checks of the time."""

RETRY_S = 1

T = TypeVar("T")


class TimeIsUp(BaseException):
    """Raised in a thread by another one to stop it. Not an Exception, so that the work does not catch it."""


def too_late(limit_s: float) -> Problem:
    """Return the problem for a request that took longer than `limit_s`: status 503, to be tried again later."""
    return Problem(
        503, f"this was not done within {limit_s:g} s and was stopped; ask for less, or later",
        headers={"Retry-After": str(RETRY_S)},
    )  # fmt: skip


class Deadline:
    """The moment at which a request's time is up: `limit_s` seconds after this object was created."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._until_s = monotonic() + limit_s

    def remaining_s(self) -> float:
        """Return the seconds that are left; raise the problem of `too_late` where none are."""
        left_s = self._until_s - monotonic()
        if left_s <= 0:
            raise too_late(self.limit_s)
        return left_s


def deadline(most_s: float) -> Deadline:
    """Return the deadline of the current request, counted from the first call for it.

    It is `most_s` seconds, or fewer where the request's header says so; Problem 422 for a wrong header.
    """
    if "deadline" not in g:
        sent = request.headers.get(HEADER)
        try:
            asked_s = most_s if sent is None else float(sent)
        except ValueError:
            asked_s = math.nan
        if not asked_s > 0:
            raise Problem(422, f"{HEADER} must be seconds above 0", pointer=f"/{HEADER}", where="header")
        g.deadline = Deadline(min(asked_s, most_s))
    found: Deadline = g.deadline
    return found


def curves_in_time(
    predictor: Predictor, ops: Sequence[Op], cases: Sequence[Case] | None, until: Deadline
) -> CurveTable:
    """The result of `predictor.curves`, computed for `OPS_AT_ONCE` ops at a time; a problem as soon as time is up.

    Each different op is forecast once.
    """
    if len(ops) <= OPS_AT_ONCE:
        until.remaining_s()
        return predictor.curves(ops, cases=cases)
    different = None if all_differ(ops) else different_ops(ops)
    wanted, parts = ops if different is None else list(different.values()), []
    for start in range(0, len(wanted), OPS_AT_ONCE):
        until.remaining_s()
        parts.append(predictor.curves(wanted[start : start + OPS_AT_ONCE], cases=cases))
    table = CurveTable.concat(parts)
    if different is None:
        return table
    rows = {key: row for row, key in enumerate(different)}
    return table.take([rows[op.forecast_key] for op in ops])


def curves_of_each(
    predictor: Predictor, ops: Sequence[Op], cases: Sequence[Case] | None, until: Deadline
) -> tuple[CurveTable, dict[int, ModelError]]:
    """As `curves_in_time`, of those ops that can be forecast; and by position why each of the others cannot."""
    try:
        return curves_in_time(predictor, ops, cases, until), {}
    except ModelError as error:
        if len(ops) == 1:
            return predictor.curves((), cases=cases), {0: error}
    half = len(ops) // 2
    first, wrong = curves_of_each(predictor, ops[:half], cases, until)
    second, others = curves_of_each(predictor, ops[half:], cases, until)
    return CurveTable.concat([first, second]), wrong | {half + row: error for row, error in others.items()}


def computed_in_time(until: Deadline, compute: Callable[[], T]) -> T:
    """Return the result of `compute`; stop it between two of its bytecodes and raise `too_late` when time is up.

    It must be pure computation: a lock or a connection that it holds at that moment would stay held. This is no context
    manager, as what is set for a thread may be raised as `__exit__` begins, where nothing catches it.
    """
    here, lock, over, asked = threading.get_ident(), threading.Lock(), False, False

    def stop() -> None:
        nonlocal asked
        with lock:
            if not over:
                asked = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(TimeIsUp))

    timer = Timer(until.remaining_s(), stop)
    timer.daemon = True
    lock.acquire()
    timer.start()
    try:
        try:
            lock.release()
            return compute()
        finally:
            with lock:
                over = True
            timer.cancel()
            if asked:
                _let_pass()
    except TimeIsUp:
        raise too_late(until.limit_s) from None


def _let_pass() -> None:
    """Have this thread raise now what another thread has set for it, if it was not raised yet.

    Taking it back (`PyThreadState_SetAsyncExc` with None) would leave Python's mark that something is pending for ever:
    up to Python 3.12, functions that are profiled or traced then never begin.
    """
    for _ in range(100):  # Python looks at the end of each round
        pass
