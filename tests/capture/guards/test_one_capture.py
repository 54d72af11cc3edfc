"""Captures of several threads take turns, and leave the process as it was."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph import recorder
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.guards import one_capture
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core.errors import CaptureError


def of_the_process() -> list[object]:
    log = logging.getLogger("torch._subclasses.fake_tensor")
    methods = [Tensor.numpy, Tensor.tolist, torch.default_generator, torch.random.default_generator]
    return [list(warnings.filters), log.disabled, *methods]


class Capturing(threading.Thread):
    """A thread that captures `function`, and does `meanwhile` in the midst of that, where the sine is called."""

    def __init__(self, function: Callable[[Tensor], Tensor], meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._function, self.meanwhile = function, meanwhile
        self.failure = ""

    def run(self) -> None:
        try:
            capture_forward(self._function, torch.ones(3))
        except CaptureError as error:
            self.failure = str(error)


@pytest.fixture(autouse=True)
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls the threads' `meanwhile`, which the captured functions cannot: what they can reach is looked at."""
    check = recorder.check_operator

    def checked(operator: object) -> None:
        check(operator)  # type: ignore[arg-type]
        thread = threading.current_thread()
        if isinstance(thread, Capturing) and operator is torch.ops.aten.sin.default:
            thread.meanwhile()

    monkeypatch.setattr(recorder, "check_operator", checked)


def test_two_captures_at_once_leave_the_process_and_what_both_reach_as_they_were() -> None:
    held = SimpleNamespace(last=None)
    first_began, second_began, first_ended = threading.Event(), threading.Event(), threading.Event()

    def function(x: Tensor) -> Tensor:
        held.last = x * 2
        return x.sin()

    before = of_the_process()
    one = Capturing(function, lambda: (first_began.set(), second_began.wait(0.5)))
    other = Capturing(function, lambda: (second_began.set(), first_ended.wait(60)))
    one.start()
    first_began.wait(60)
    other.start()
    one.join()
    first_ended.set()
    other.join()
    assert of_the_process() == before
    assert held.last is None
    assert "held.last (a variable of function) is set in every call" in one.failure
    assert other.failure == one.failure


@contextmanager
def capturing() -> Iterator[None]:
    """Within the context another thread captures."""
    begun, over = threading.Event(), threading.Event()
    thread = Capturing(torch.sin, lambda: (begun.set(), over.wait(60)))
    thread.start()
    begun.wait(60)
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert thread.failure == ""


def test_a_capture_that_gets_no_turn_says_so_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_capture, "WAIT_S", 0.01)
    with capturing(), pytest.raises(NoTurn, match="other threads were capturing"):
        capture_forward(torch.sin, torch.ones(3))
    assert capture_forward(torch.sin, torch.ones(3)).run(torch.zeros(3)).tolist() == [0] * 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked on this system")
def test_a_child_that_is_forked_during_a_capture_may_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_capture, "WAIT_S", 0.01)
    with capturing():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with one_capture.one_capture():
                    status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


class Keeps(type):
    """Classes whose attributes cannot be taken away."""

    def __delattr__(cls, name: str) -> None:
        raise TypeError(name)


@pytest.mark.parametrize("order", [1, -1])
def test_what_cannot_be_put_back_keeps_nothing_else(order: int) -> None:
    before, owner = time.time, Keeps("Owner", (), {})
    stand_ins = [(owner, "__repr__", lambda _: ""), (time, "time", lambda _: 0.0)][::order]
    with pytest.raises(TypeError, match="__repr__"), one_capture.replaced(*stand_ins):
        assert time.time() == 0.0
    assert time.time is before
