"""The largest numbers of windows by our operator are PyTorch's bit for bit, and so are their places."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.operators import pools
from threadcast.runtime.operators.pools import MAX_POOL, is_right, with_pools

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def _faster_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "serves", lambda: True)


def images(*shape: int, special: bool = False) -> Tensor:
    """Numbers of which many are equal; with `special` some are infinite or NaN."""
    generator = torch.Generator().manual_seed(sum(shape))
    found = torch.randint(-3, 4, shape, generator=generator).float()
    if special:
        values = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
        some = values[torch.randint(4, shape, generator=generator)]
        found = torch.where(torch.rand(shape, generator=generator) < 0.5, some, found)
    return found


pair = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(list)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.integers(1, 40), st.integers(1, 70), pair, pair, st.tuples(st.integers(0, 2), st.integers(0, 2)).map(list), pair,
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_all_windows(
    height: int, width: int, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int],
    ceil_mode: bool, special: bool,
) -> None:  # fmt: skip
    assume(all(2 * pad <= side for pad, side in zip(padding, kernel, strict=True)))
    spans = [step * (side - 1) + 1 - 2 * pad for step, side, pad in zip(dilation, kernel, padding, strict=True)]
    assume(spans[0] <= height and spans[1] <= width)
    x = images(2, 3, height, width, special=special)
    assert is_right(x, kernel, stride, padding, dilation, ceil_mode=ceil_mode)


def test_an_image_of_nothing_but_the_least_number() -> None:
    x = torch.full((1, 2, 9, 9), -math.inf)
    assert is_right(x, [3, 3], [2, 2], [1, 1], [1, 1], ceil_mode=True)


@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.MaxPool2d(3, 2, 1), (2, 8, 30, 31)), (nn.MaxPool2d(2), (2, 8, 30, 31)),
        (nn.MaxPool2d(3, 1, 1), (8, 30, 31)),
        (nn.MaxPool2d((3, 2), (2, 1), (1, 0), dilation=(1, 2), ceil_mode=True), (3, 4, 17, 18)),
        (nn.MaxPool2d(5, 3, 2), (1, 3, 40, 41)), (nn.MaxPool2d(2, return_indices=True), (2, 3, 16, 16)),
    ],
)  # fmt: skip
def test_pools_of_networks(pool: nn.Module, shape: tuple[int, ...], machine: Machine) -> None:
    x = images(*shape)
    captured = with_pools(capture_forward(pool, x))
    assert Counter(op.kind for op in captured.graph.ops)[MAX_POOL] == 1
    torch.testing.assert_close(captured.run(x), pool(x), rtol=0, atol=0)
    for seed in range(2):
        plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=seed)
        with Engine(captured, plan, machine) as engine:
            found = captured.finish(engine.run(captured.bind(x)))
            torch.testing.assert_close(found, pool(x), rtol=0, atol=0)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(12), nn.MaxPool2d((1, 4)), nn.MaxPool2d(6)])
def test_few_windows_are_left_to_pytorch(pool: nn.Module) -> None:
    captured = capture_forward(pool, images(2, 4, 24, 24))
    assert with_pools(captured) is captured


def test_impossible_windows_raise() -> None:
    x = images(1, 1, 8, 8)
    for size, kernel, stride in (([4], [2, 2], [2, 2]), ([4, 4], [0, 2], [2, 2]), ([4, 4], [2, 2], [2, 0])):
        with pytest.raises(RuntimeError, match="max_pool"):
            pools.operator()(x, size, kernel, stride, [0, 0], [1, 1])


@pytest.mark.parametrize(
    "given",
    [
        images(2, 4, 20, 20).double(), images(2, 4, 20, 20).to(memory_format=torch.channels_last),
        images(2, 20, 20, 4).permute(0, 3, 1, 2), images(2, 4, 20, 40)[..., ::2],
    ],
)  # fmt: skip
def test_other_images_are_left_to_pytorch(given: Tensor) -> None:
    captured = capture_forward(nn.MaxPool2d(3, 2, 1), given)
    assert with_pools(captured) is captured


def test_a_training_step_is_pytorchs_bit_for_bit() -> None:
    steps: list[Callable[[], object]] = []
    for ours in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(8 * 81, 5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = images(4, 3, 20, 20), torch.arange(4)
        captured = capture_training(model, nn.functional.cross_entropy, optimizer, [x], y, gradients=True)
        chosen = with_pools(captured) if ours else captured
        assert (chosen is captured) is not ours
        steps.append(lambda chosen=chosen: chosen.run())  # type: ignore[misc]
    (wanted, found) = (step() for step in steps)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
