"""Random numbers that other threads draw while a step is compared do not come again, and are no difference."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.runtime.check.shadow import Shadowed, checked_step, leaves, may_draw, verified_step

X = torch.ones(2, 3)

DRAWS: dict[str, Callable[[], float]] = {
    "Python": random.random, "NumPy": lambda: float(np.random.rand()), "PyTorch": lambda: torch.rand(()).item(),
}  # fmt: skip


def compared(shadowed: Shadowed, captured: Captured) -> None:
    assert checked_step(shadowed, captured.run, (X,), captured).difference is None


def verified(shadowed: Shadowed, captured: Captured) -> None:
    verified_step(shadowed, captured.run, (X,), captured, lambda: None)


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("check", [compared, verified])
@pytest.mark.parametrize("of", DRAWS)
def test_numbers_of_another_thread_are_its_own(
    of: str, check: Callable[[Shadowed, Captured], None], functional: bool
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    numbers: list[float] = []

    def draw() -> None:
        numbers.append(DRAWS[of]())

    def eager(x: Tensor) -> Any:
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        with torch.no_grad():
            return model(x)

    shadowed = Shadowed(eager, eager, None if functional else model, None, leaves, functional)
    check(shadowed, capture_forward(model, X))
    draw()
    assert len(numbers) > 1
    assert len(set(numbers)) == len(numbers)


def test_the_generator_from_which_a_step_may_draw_is_set_back() -> None:
    assert may_draw(capture_forward(lambda x: nn.functional.dropout(x), X))
    assert not may_draw(capture_forward(lambda x: x * 2, X))
    assert may_draw(None)
