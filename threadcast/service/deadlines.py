"""The time that a request may take, and how work that takes longer is stopped."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from flask import g, request

from threadcast.core import Case, CurveTable, Op
from threadcast.prediction.predictor import Predictor
from threadcast.service.problems import Problem

HEADER = "X-Deadline-S"
"""Seconds that the client waits for the answer. The setting `deadline_s` applies where this is longer or not sent."""

OPS_AT_ONCE = 512
"""Ops that are predicted between two checks of the time."""

RETRY_S = 1


class TimeIsUp(BaseException):
    """Raised in a thread by another one to stop it. Not an Exception, so that the work does not catch it."""


def too_late(limit_s: float) -> Problem:
    """Return the problem with which a request that takes longer than `limit_s` is answered: 503, to be tried later."""
    return Problem(
        503, f"this was not done within {limit_s:g} s and was stopped; ask for less, or later",
        headers={"Retry-After": str(RETRY_S)},
    )  # fmt: skip


class Deadline:
    """The end of the time that a request may take: `limit_s` seconds from now."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._until_s = time.monotonic() + limit_s

    def remaining_s(self) -> float:
        """Return the seconds that are left; raise `too_late` where there are none."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise too_late(self.limit_s)
        return left_s


def deadline(most_s: float) -> Deadline:
    """Return the deadline of the current request, counted from the first call; Problem 422 for a wrong header."""
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
    """What `predictor.curves` gives, `OPS_AT_ONCE` at a time; a problem as soon as time is up."""
    parts = []
    for start in range(0, len(ops), OPS_AT_ONCE):
        until.remaining_s()
        parts.append(predictor.curves(ops[start : start + OPS_AT_ONCE], cases=cases))
    return CurveTable.concat(parts)


@contextmanager
def stopped_in_time(until: Deadline) -> Iterator[None]:
    """Stop the block between two of its bytecodes when time is up, and raise `too_late`.

    Only for pure computation: a lock or a connection that it holds at that moment would stay held.
    """
    here, lock, over = threading.get_ident(), threading.Lock(), False

    def stop() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), ctypes.py_object(TimeIsUp))

    timer = threading.Timer(until.remaining_s(), stop)
    timer.daemon = True
    try:
        try:
            timer.start()
            yield
        finally:
            with lock:
                over = True
            timer.cancel()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(here), None)
    except TimeIsUp:
        raise too_late(until.limit_s) from None
