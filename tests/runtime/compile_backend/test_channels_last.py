"""Forward and backward graphs in channels last: weights, results and gradients keep the order as given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compile_backend.running import run_until_settled, runners
from tests.runtime.small_training import same_state
from threadcast.runtime.compile_backend import _calls, compiled_graphs
from threadcast.runtime.graph_layout import ChannelsLast
from threadcast.runtime.plans.variant import MemoryFormat

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


class Images(nn.Module):
    """Returns scores, by a `view` of images, and the images, which are also saved for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        images = self.second(torch.tanh(self.norm(self.first(x)))).tanh()
        return self.last(images.view(len(x), -1)), images


def images_model() -> nn.Module:
    torch.manual_seed(0)
    return Images().double()


def images(seed: int, size: int = 4) -> Tensor:
    return torch.randn(size, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loss(model: Any, step: int, size: int = 4) -> Tensor:
    scores, found = model(images(step, size))
    assert found.is_contiguous()
    return scores.square().mean() + found.square().mean()


def use(layout: MemoryFormat) -> None:
    """Run the following calls in this layout, as if it were the one that is tried."""
    for call in _calls:
        call._layout = layout


def train(
    step: Callable[[Any, torch.optim.Optimizer, int], None], *, layout: Callable[[int], MemoryFormat], steps: int = 0
) -> None:
    """Train a compiled and an eager model, the first in the layout of each step; compare them after each."""
    mine, eager = images_model(), images_model()
    compiled = torch.compile(mine, backend="threadcast")
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (mine, eager)]

    def run(number: int) -> None:
        use(layout(number))
        for called, optimizer in zip((compiled, eager), optimizers, strict=True):
            step(called, optimizer, number)
        same_state(mine, eager)
        for parameter in mine.parameters():
            assert parameter.is_contiguous()

    for number in range(steps):
        run(number)
    if not steps:
        run_until_settled(run, least=20)
    assert in_channels_last() == BOTH


def plainly(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.zero_grad()
    loss(model, number).backward()
    optimizer.step()


def always(layout: MemoryFormat) -> Callable[[int], MemoryFormat]:
    return lambda number: layout if number else MemoryFormat.AS_GIVEN  # graphs exist from the first call on


LAST = always(MemoryFormat.CHANNELS_LAST)


def in_channels_last() -> set[str]:
    """The roles of graphs of which calls ran in channels last."""
    return {graph.title.split(", ")[1] for graph in compiled_graphs() if graph._layouts}


BOTH = {"forward", "backward"}


def test_training_in_channels_last_is_eager_training() -> None:
    train(plainly, layout=LAST)
    assert runners() == {"forward": ["plan"], "backward": ["plan"]}


def test_layouts_may_change_between_steps() -> None:
    formats = MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN
    train(plainly, layout=lambda number: formats[number % 3 == 2], steps=60)


def test_gradients_are_added_over_calls_of_both_layouts() -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        for part in range(2):
            loss(model, 2 * number + part).backward()
            use(MemoryFormat.AS_GIVEN)
        optimizer.step()

    train(step, layout=LAST, steps=40)


def test_a_backward_pass_may_come_after_calls_in_another_layout() -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        first = loss(model, number)
        use(MemoryFormat.AS_GIVEN)
        second = loss(model, number + 1)
        first.backward()
        second.backward()
        optimizer.step()

    train(step, layout=LAST, steps=40)


def test_weights_written_by_data_between_both_passes_count_as_in_eager() -> None:
    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        value = loss(model, number)
        for parameter in model.parameters():
            parameter.data.mul_(0.9)
        value.backward()
        optimizer.step()

    train(step, layout=LAST, steps=40)


def test_a_weight_written_between_both_passes_raises_as_in_eager() -> None:
    model = images_model()
    compiled = torch.compile(model, backend="threadcast")
    loss(compiled, 0).backward()
    use(MemoryFormat.CHANNELS_LAST)
    for number in range(20):
        loss(compiled, number).backward()
    assert in_channels_last() == BOTH
    value = loss(compiled, 1)
    with torch.no_grad():
        model.second.weight.mul_(2)  # type: ignore[union-attr, operator]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_hooks_evaluation_and_other_sizes_between_steps_are_eagers() -> None:
    seen: dict[int, list[Tensor]] = {}

    def step(model: Any, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        value = loss(model, number, size=3 if number % 5 == 4 else 4)
        value.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        if number in seen:
            for one, other in zip(seen.pop(number), gradients, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
        else:
            seen[number] = gradients
        optimizer.step()
        model.eval()
        with torch.no_grad():
            loss(model, number)
        model.train()

    train(step, layout=LAST, steps=60)


def test_gradients_of_images_have_the_strides_of_the_images() -> None:
    model, eager = images_model(), images_model()
    compiled = torch.compile(model, backend="threadcast")
    for number in range(40):
        found = []
        for called in (compiled, eager):
            x = images(number).requires_grad_()
            gradients: list[Tensor] = []
            y = 2 * x
            y.register_hook(lambda gradient, to=gradients: to.append(gradient))
            called(y)[1].square().sum().backward()
            found.append((x.grad, *gradients))
        use(MemoryFormat.CHANNELS_LAST)
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, check_stride=True)
    assert in_channels_last() == BOTH


def test_a_model_that_draws_random_numbers_stays_in_the_order_as_given() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 2, 3))
    torch.compile(model, backend="threadcast")(torch.randn(2, 3, 8, 8)).sum().backward()
    assert not any(graph.has_channels_last for graph in compiled_graphs())


def test_operators_that_depend_on_strides_stay_in_the_order_as_given() -> None:
    layer = nn.Conv2d(3, 4, 3)

    def call(x: Tensor) -> Tensor:
        y = layer(x)
        return torch.as_strided(y, (2, 4), (4, 1)).sum() + y.sum()

    compiled = torch.compile(call, backend="threadcast")
    compiled(torch.randn(2, 3, 8, 8)).backward()
    assert not any(graph.has_channels_last for graph in compiled_graphs())


def test_convolutions_whose_kernel_overruns_memory_stay_in_the_order_as_given() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3))
    torch.compile(model, backend="threadcast")(torch.randn(2, 3, 16, 16)).sum().backward()
    assert not any(graph.has_channels_last for graph in compiled_graphs())


@pytest.mark.parametrize("wrong", ["forward", "backward"])
def test_results_that_differ_in_channels_last_are_never_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ChannelsLast.__call__

    def call(self: ChannelsLast, *arguments: Any) -> list[Any]:
        is_backward = all(strides is not None for strides in self._strides)
        off = 0.1 * (is_backward == (wrong == "backward"))
        found = right(self, *arguments)
        return [
            value + off if off and isinstance(value, Tensor) and value.is_floating_point() else value for value in found
        ]

    monkeypatch.setattr(ChannelsLast, "__call__", call)
    mine, eager = images_model(), images_model()
    compiled = torch.compile(mine, backend="threadcast")
    for number in range(30):
        for called, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            loss(called, number).backward()
        use(MemoryFormat.CHANNELS_LAST)
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-8, atol=1e-10)
    has = {graph.title.split(", ")[1]: graph.has_channels_last for graph in compiled_graphs()}
    assert has["forward"] == (wrong == "backward")
