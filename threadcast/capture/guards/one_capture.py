"""Captures of several threads take turns: each changes what belongs to the whole process, and puts back what it found.

Such are the filters of warnings, methods of tensors, and Python values that both can reach. Two that
overlapped would put back what the other one had set. What stands for a function does so for the thread that captures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from threadcast.core.errors import CaptureError

WAIT_S = 20.0
"""Longest wait for captures of other threads. One never ends that waits for a lock which this thread holds, as where it
calls a function that this thread is about to capture. A convention: captures of large models take some 10 s."""


class NoTurn(CaptureError):
    """Other threads were capturing for all the time that a capture waits. It may be tried again."""


_turn = threading.RLock()


@contextmanager
def one_capture(*, wait_s: float | None = None) -> Iterator[None]:
    """Within the context no other thread captures; NoTurn where others do for `wait_s` seconds (None: `WAIT_S`).

    0 is for calls that PyTorch can run meanwhile.
    """
    wait_s = WAIT_S if wait_s is None else wait_s
    turn = _turn
    if not turn.acquire(timeout=wait_s):
        waited = f" for {wait_s:g} s" if wait_s else ""
        raise NoTurn(f"cannot capture: other threads were capturing{waited}; call it again")
    try:
        yield
    finally:
        turn.release()


def _renew() -> None:
    """In a forked child, where no thread is left that could end its turn."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew)


StandIn = tuple[Any, str, Callable[..., Any]]
"""A module or class, the name of a function of it, and what is called in its place, with it as first argument."""


@contextmanager
def replaced(*stand_ins: StandIn) -> Iterator[None]:
    """Within the context this thread calls the stand-ins, and other threads what they stand for.

    Afterwards who has kept one of them, as modules do that are imported meanwhile, calls what it stands for too.
    """
    here = {threading.get_ident()}

    def divided(function: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() in here:
                return stand_in(function, *arguments, **named)
            return function(*arguments, **named)

        return called

    absent = object()
    with ExitStack() as end:
        for owner, name, stand_in in stand_ins:  # `unittest.mock.patch` takes ten times as long, for 90 functions
            own = vars(owner).get(name, absent)
            setattr(owner, name, divided(getattr(owner, name), stand_in))
            end.callback(*((delattr, owner, name) if own is absent else (setattr, owner, name, own)))
        end.callback(here.clear)
        yield
