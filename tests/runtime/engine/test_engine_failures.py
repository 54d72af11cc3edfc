"""An exception in any op, in any thread, ends the step cleanly, and the next one works."""

from __future__ import annotations

import os
import signal
import threading
import traceback

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from tests.runtime.failing_op import Seen, at_checkpoints, checkpoint
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine

pytestmark = needs_compiler

CHECKPOINTS = 12


class Unforeseen(Exception):  # no RuntimeError: an exception of the user's own kind must come back as it was
    pass


def ladder(x: Tensor) -> Tensor:
    """Two branches that meet now and then, with checkpoints in both."""
    left, right = x, x * 2
    for i in range(CHECKPOINTS // 2):
        left, right = checkpoint(left.sin()), checkpoint(right.cos())
        if i % 2:
            left = left + right
    return left + right


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture_forward(ladder, torch.ones(16))


def opened(captured: Captured, machine: Machine, seed: int) -> Engine:
    cores = tuple(core.id for core in machine.cores)
    return Engine(captured, make_random_plan(captured.graph, cores, seed=seed, max_factor=1 + seed), machine)


class FailAt:
    """Raises when the `number`-th checkpoint of a step is reached."""

    def __init__(self, number: int, error: BaseException) -> None:
        self.left, self.error = number, error
        self.lock = threading.Lock()

    def __call__(self, value: Tensor) -> None:
        with self.lock:
            self.left -= 1
            if self.left == -1:
                raise self.error


@pytest.mark.parametrize("seed", range(3))
def test_an_error_at_any_op_comes_back_and_the_next_step_works(seed: int, captured: Captured, machine: Machine) -> None:
    engine = opened(captured, machine, seed)
    expected = captured.run()
    for number in range(CHECKPOINTS):
        error, seen, reached = Unforeseen(number), Seen(), list[int]()
        with (
            at_checkpoints(seen), at_checkpoints(lambda _, reached=reached: reached.append(1)),
            at_checkpoints(FailAt(number, error)), pytest.raises(Unforeseen) as raised,
        ):  # fmt: skip
            engine.run(captured.bind())
        assert len(reached) <= number + len(machine), "no further operator begins"
        assert raised.value is error
        assert "raise self.error" in traceback.format_exception(error)[-2]
        assert seen.alive() <= 1, "the traceback may hold what the op that raised was given, nothing else may be held"
        del raised
        error.__traceback__ = None
        assert seen.alive() == 0
        assert torch.equal(engine.run(captured.bind()), expected)


def test_an_error_of_torch_itself_comes_back(captured: Captured, machine: Machine) -> None:
    product = capture_forward(lambda x, y: (x @ y).sin(), torch.ones(4, 4), torch.ones(4, 4))
    engine = opened(product, machine, 1)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as raised:
        engine.run([torch.ones(4, 4), torch.ones(5, 4)])
    assert type(raised.value) is RuntimeError
    assert torch.equal(engine.run(product.bind()), product.run())


def test_ctrl_c_waits_for_the_end_of_a_native_step(captured: Captured, machine: Machine) -> None:
    if len(machine) < 2:
        pytest.skip("needs a second core")
    engine = opened(captured, machine, 0)
    pressed, main = threading.Event(), threading.get_ident()

    def press(value: Tensor) -> None:
        if not pressed.is_set() and threading.get_ident() != main:  # in the main thread Python's own code would raise
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with at_checkpoints(press), pytest.raises(KeyboardInterrupt):
            engine.run(captured.bind())
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed.is_set()
    assert torch.equal(engine.run(captured.bind()), captured.run())
