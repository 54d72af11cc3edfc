"""No number of `torch.rand` is less than 0; calls that set the generator are refused, and draws keep their order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph import recorder
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.core.errors import CaptureError


class Dropped(nn.Module):
    """Layers that are left out by chance, as those of BART are in training: with a probability of 0 by default."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.layers = p, nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand([]) < self.p:
                continue
            x = layer(x).relu() + 1
        return x


def test_a_probability_of_0_is_built_in_and_the_numbers_are_drawn() -> None:
    model, x = Dropped(0.0), torch.randn(2, 4)
    captured = capture_forward(model, x)
    torch.manual_seed(1)
    wanted, state = model(x), torch.get_rng_state()
    torch.manual_seed(1)
    assert torch.equal(captured.run(x), wanted)
    assert torch.equal(torch.get_rng_state(), state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_training(model, nn.functional.mse_loss, optimizer, [x], x)


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "may be": lambda x: x if torch.rand([]) < 0.1 else x * 2,
    "NaN": lambda x: x if not torch.rand([]) < float("nan") and torch.rand([]) < 0.5 else x * 2,
    "normal": lambda x: x if torch.randn([]) < 0.0 else x * 2,
    "another tensor": lambda x: x if torch.rand([]) < torch.rand([]) else x * 2,
    "drawn anew": lambda x: x if torch.rand([]).normal_() < 0.0 else x * 2,
    "written": lambda x: x if (torch.rand([]) < 0.0).bernoulli_(0.5) else x * 2,
    "shifted": lambda x: x if torch.rand([]) - 0.5 < 0.0 else x * 2,
    "equal to a mask": lambda x: x if torch.equal(torch.rand(3) < 0.0, torch.rand(3) < 0.5) else x * 2,
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_chance_decides_is_not_built_in(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError):
        capture_forward(call, torch.ones(2))


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.default_generator.manual_seed, lambda _: torch.seed()])
@pytest.mark.parametrize("draws", [False, True])
def test_a_call_that_sets_the_generator_is_not_captured_and_leaves_it(
    seed: Callable[[int], object], draws: bool
) -> None:
    def call(x: Tensor) -> Tensor:
        seed(7)
        return x + torch.rand(2) if draws else x * 2

    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match="generator"):
        capture_forward(call, torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before)


DRAWS: dict[str, Callable[[], float]] = {"Python": random.random, "NumPy": lambda: float(np.random.rand())}


@pytest.mark.parametrize("of", [*DRAWS, "PyTorch"])
def test_what_another_thread_draws_is_neither_refused_nor_drawn_again(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check = recorder.check_operator
    draw = {**DRAWS, "PyTorch": lambda: float(torch.rand(()))}[of]
    numbers: list[float] = []
    with ThreadPoolExecutor(1) as other:

        def checked(operator: Any) -> None:
            check(operator)
            if not numbers:
                numbers.append(other.submit(draw).result())

        monkeypatch.setattr(recorder, "check_operator", checked)
        capture_forward(lambda x: x.sin(), torch.ones(2))
    assert len(numbers) == 1
    assert draw() != numbers[0]


@pytest.mark.parametrize("of", DRAWS)
@pytest.mark.parametrize("alone", [False, True])
def test_what_a_call_draws_of_python_or_numpy_is_refused_and_drawn_again(of: str, alone: bool) -> None:
    draw = DRAWS[of]
    random.seed(1)
    np.random.seed(1)
    with ThreadPoolExecutor(1) as other:
        if not alone:
            other.submit(int).result()  # from here on there is another thread
        with pytest.raises(CaptureError, match="random numbers of Python or NumPy"):
            capture_forward(lambda x: x * draw(), torch.ones(2))
    found = draw()
    random.seed(1)
    np.random.seed(1)
    assert draw() == found


@pytest.fixture
def noisy() -> Iterator[torch._ops.OpOverloadPacket]:
    """An operator of a user's own that draws random numbers, and does not say so, as few do."""
    with torch.library._scoped_library("tested_draws", "FRAGMENT") as library:
        library.define("noisy(Tensor x) -> Tensor")
        library.impl("noisy", lambda x: x + torch.rand(x.shape), "CPU")
        library.impl("noisy", torch.empty_like, "Meta")
        yield torch.ops.tested_draws.noisy


def test_custom_operators_draw_the_numbers_that_they_draw_in_eager_pytorch(
    noisy: torch._ops.OpOverloadPacket,
) -> None:
    def function(x: Tensor) -> Tensor:
        first, second = noisy(x), noisy(x * 2)
        noisy(x)  # draws, too, though nothing reads what it returns
        found: Tensor = first - torch.rand(2) * second
        return found

    def drawn(call: Callable[[], Tensor]) -> list[float]:
        torch.manual_seed(1)
        return [*call().tolist(), *torch.rand(1).tolist()]

    x = torch.ones(2)
    captured, wanted = capture_forward(function, x), drawn(lambda: function(x))
    edges, orders = captured.graph.edges, 0
    for order in permutations(range(len(captured.graph))):
        if all(order.index(edge.source) < order.index(edge.target) for edge in edges):
            orders += 1
            assert drawn(partial(captured.run, x, order=order)) == wanted
    assert orders > 1
