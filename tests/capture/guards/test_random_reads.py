"""No number of `torch.rand` is less than 0; calls that set generators are refused, and draws keep their order."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import permutations
from random import uniform
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from threadcast.capture.graph import recorder
from threadcast.capture.graph.capture import capture_forward
from threadcast.core.errors import CaptureError


def dropped(x: Tensor, p: float = 0.0) -> Tensor:
    """Layers that are left out by chance, as those of BART are in training: with a probability of 0 by default."""
    for _ in range(3):
        if torch.rand([]) < p:
            continue
        x = x.tanh() + 1
    return x


def test_a_probability_of_0_is_built_in_and_the_numbers_are_drawn() -> None:
    x, found = torch.randn(2, 4), []
    for call in (dropped, capture_forward(dropped, x).run):
        torch.manual_seed(1)
        found.append((call(x), torch.get_rng_state()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def suppressed(call: Callable[[], object]) -> None:
    with suppress(Exception):
        call()


GENERATOR = torch.default_generator
REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "may be": lambda x: x if torch.rand([]) < 0.1 else x * 2,
    "NaN": lambda x: x if not torch.rand([]) < float("nan") and torch.rand([]) < 0.5 else x * 2,
    "normal": lambda x: x if torch.randn([]) < 0.0 else x * 2,
    "another tensor": lambda x: x if torch.rand([]) < torch.rand([]) else x * 2,
    "drawn anew": lambda x: x if torch.rand([]).normal_() < 0.0 else x * 2,
    "written": lambda x: x if (torch.rand([]) < 0.0).bernoulli_(0.5) else x * 2,
    "shifted": lambda x: x if torch.rand([]) - 0.5 < 0.0 else x * 2,
    "equal to a mask": lambda x: x if torch.equal(torch.rand(3) < 0.0, torch.rand(3) < 0.5) else x * 2,
    "a seed": lambda x: (torch.manual_seed(7), x + torch.rand(2)),
    "a seed alone": lambda x: (torch.manual_seed(7), x * 2),
    "the generator's seed": lambda x: (torch.default_generator.manual_seed(7), x * 2),
    "a seed by chance": lambda x: (torch.seed(), x * 2),
    "the generator by a name of its own": lambda x: (GENERATOR.manual_seed(7), x * 2),
    "the state again": lambda x: (torch.set_rng_state(torch.get_rng_state()), x + torch.rand(2)),
    "Python's seed": lambda x: (random.seed(1), x * 2),
    "NumPy's seed": lambda x: (np.random.seed(1), x * 2),
    "Python's numbers": lambda x: x * random.random(),
    "Python's numbers, caught": lambda x: (suppressed(lambda: random.shuffle([1, 2])), x * 2),
    "NumPy's numbers": lambda x: x * np.random.rand(),
    "a sample of NumPy's": lambda x: x * np.random.sample(),
    "Python's generator": lambda x: x * random._inst.random(),  # type: ignore[attr-defined]
    "NumPy's generator": lambda x: x * np.random.mtrand._rand.rand(),
    "numbers by a name of their own": lambda x: x * uniform(0, 1),
    "numbers of NumPy's module": lambda x: x * np.random.mtrand.rand(),  # type: ignore[attr-defined]
    "numbers by a library": lambda x: x * statistics.NormalDist().samples(1)[0],
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_chance_decides_or_sets_is_refused_and_leaves_the_generators(call: Callable[[Tensor], Any]) -> None:
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    with pytest.raises(CaptureError):
        capture_forward(call, torch.ones(2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), repr(np.random.get_state())) == before[1:]


DRAWS: list[Callable[[], float]] = [random.random, lambda: float(np.random.rand()), lambda: float(torch.rand(()))]


def seeded() -> float:
    """Sets a seed, and draws the first number."""
    torch.manual_seed(int(torch.initial_seed()) % 1000 + 1)
    return float(torch.rand(()))


@pytest.mark.parametrize("draw", [*DRAWS, seeded])
def test_what_another_thread_draws_or_sets_is_neither_refused_nor_set_back(
    draw: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    check, numbers, seeds = recorder.check_operator, list[float](), [torch.initial_seed()]
    with ThreadPoolExecutor(1) as other:
        other.submit(int).result()  # the thread is there before

        def checked(operator: Any) -> None:
            check(operator)
            if not numbers:
                numbers.append(other.submit(draw).result())
                seeds.append(torch.initial_seed())

        monkeypatch.setattr(recorder, "check_operator", checked)
        capture_forward(lambda x: x.sin(), torch.ones(2))
    assert len(numbers) == 1
    assert torch.initial_seed() == seeds[-1]
    assert (seeds[0] != seeds[1]) == (draw is seeded)
    assert draw() != numbers[0]


def test_custom_operators_draw_the_numbers_that_they_draw_in_eager_pytorch() -> None:
    """Few say that they draw."""
    with torch.library._scoped_library("tested_draws", "FRAGMENT") as library:
        library.define("noisy(Tensor x) -> Tensor")
        library.impl("noisy", lambda x: x + torch.rand(x.shape), "CPU")
        library.impl("noisy", torch.empty_like, "Meta")
        noisy = torch.ops.tested_draws.noisy

        def function(x: Tensor) -> Tensor:
            first, second = noisy(x), noisy(x * 2)
            noisy(x)  # draws, too, though nothing reads what it returns
            found: Tensor = first - torch.rand(2) * second
            return found

        def drawn(call: Callable[..., Tensor], **order: Any) -> list[float]:
            torch.manual_seed(1)
            return [*call(torch.ones(2), **order).tolist(), *torch.rand(1).tolist()]

        captured, wanted = capture_forward(function, torch.ones(2)), drawn(function)
        edges = captured.graph.edges
        orders = [
            order for order in permutations(range(len(captured.graph)))
            if all(order.index(edge.source) < order.index(edge.target) for edge in edges)
        ]  # fmt: skip
        assert len(orders) > 1
        assert all(drawn(captured.run, order=order) == wanted for order in orders)
