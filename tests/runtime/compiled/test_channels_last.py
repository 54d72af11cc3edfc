"""Forward and backward graphs in channels last: weights, results and gradients keep the order as given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.runtime.compiled.running import run_until_settled, runners
from tests.runtime.small_training import same_state
from tests.whole_calls import layouts
from threadcast.runtime.compiled import kinds_in_channels_last
from threadcast.runtime.doors.compile_backend import _calls, compiled_graphs
from threadcast.runtime.layout.graph_layout import ChannelsLast, _takes_any_strides
from threadcast.runtime.plans.variant import MemoryFormat

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]


class Images(nn.Module):
    """Returns scores, by a `view` of images, and sizes of these images, which are saved for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        images = self.second(torch.tanh(self.norm(self.first(x)))).tanh()
        return self.last(images.view(len(x), -1)), images.abs()


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
        layouts[call._whole] = layout


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
            scores, sizes = called(y)
            (scores.square().sum() + sizes.square().sum()).backward()
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


class Kept(nn.Module):
    """Returns what `kept` makes of images and of their convolution."""

    def __init__(self, kept: Callable[[Any, Tensor, Tensor], Any], *more: nn.Module) -> None:
        super().__init__()
        self.convolution, self.kept, self.more = nn.Conv2d(3, 8, 3, padding=1), kept, nn.ModuleList(more)

    def forward(self, x: Tensor) -> Any:
        return self.kept(self, x, self.convolution(x))


UNKNOWN: dict[str, Kept] = {
    "group norm": Kept(lambda m, _, y: m.more[0](y).tanh(), nn.GroupNorm(2, 8)),
    "group norm of other dimensions": Kept(lambda m, _, y: m.more[0](y.unsqueeze(2)).tanh(), nn.GroupNorm(2, 8)),
    "weight norm": Kept(lambda m, _, y: m.more[0](y.tanh()), nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 4, 3))),
    "attention": Kept(
        lambda _, x, y: nn.functional.scaled_dot_product_attention(y.flatten(2), y.flatten(2), y.flatten(2))
    ),
    "fractional pooling": Kept(
        lambda _, x, y: nn.functional.fractional_max_pool2d(
            y, 2, output_size=3, _random_samples=y.new_full((4, 8, 2), 0.4)
        )
    ),
    "a transposed convolution": Kept(lambda m, _, y: m.more[0](y), nn.ConvTranspose2d(8, 5, (3, 1), stride=(1, 2))),
    "batch norm of one image": Kept(lambda m, _, y: m.more[0](y[0].unsqueeze(0)).tanh(), nn.BatchNorm2d(8)),
    "a view of a weight that is saved": Kept(lambda m, _, y: y.tanh().sum() * m.convolution.weight.flatten(1).square()),
    "a view of an image that is saved": Kept(lambda _, x, y: (x.flatten(1).square(), y.tanh())),
    "a view of a result that is saved": Kept(
        lambda m, _, y: (y.tanh_(), m.more[0](y.flatten(1))), nn.Linear(8 * 64, 4)
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_to_be_right_in_channels_last_stays_as_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds_in_channels_last, "_why_not", lambda *_: None)  # the comparison of first calls, too
    model = UNKNOWN[name].double()
    compiled = torch.compile(copy.deepcopy(model), backend="threadcast")
    for number in range(6):
        for called in (model, compiled):
            called.zero_grad()
            x = images(number).requires_grad_()
            found = called(x)
            sum(value.square().sum() for value in (found if isinstance(found, tuple) else (found,))).backward()
        use(MemoryFormat.CHANNELS_LAST)
        assert not any(graph.has_channels_last for graph in compiled_graphs())
        for mine, eager in zip(compiled.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, eager.grad)


@pytest.mark.parametrize("view", [lambda y: y[:, :, ::2], lambda y: y[0, :, :1].expand(2, 8, 1, 8)[::2]])
def test_views_with_strides_that_gradients_misread_stay_as_given(view: Callable[[Tensor], Tensor]) -> None:
    for rows in (1, 4):
        graph = make_fx(view, tracing_mode="fake")(torch.randn(4, 8, rows, 8))
        assert _takes_any_strides(graph) == (1 not in view(torch.randn(4, 8, rows, 8)).shape)


def test_gradients_that_are_zero_at_first_do_not_show_that_channels_last_is_right() -> None:
    model, eager = images_model(), images_model()
    compiled = torch.compile(model, backend="threadcast")
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (model, eager)]
    for number in range(30):
        for called, optimizer in zip((compiled, eager), optimizers, strict=True):
            optimizer.zero_grad()
            (loss(called, number) * (number >= 5)).backward()
            optimizer.step()
        same_state(model, eager)
        use(MemoryFormat.CHANNELS_LAST)
        assert ("backward" in in_channels_last()) == (number >= 5)


def test_results_that_are_constant_at_first_do_not_show_that_channels_last_is_right() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Tanh()).double()
    nn.init.constant_(model[0].weight, 0.01)
    compiled = torch.compile(copy.deepcopy(model), backend="threadcast")
    for number in range(8):
        x = torch.ones(4, 3, 8, 8).double() if number < 5 else images(number)
        torch.testing.assert_close(compiled(x), model(x))
        use(MemoryFormat.CHANNELS_LAST)
        assert ("forward" in in_channels_last()) == (number >= 5)


def test_a_result_that_is_saved_is_one_tensor_with_what_is_saved() -> None:
    model = Kept(lambda _, x, y: y.tanh()).double()
    compiled, eager = torch.compile(copy.deepcopy(model), backend="threadcast"), model
    for number in range(30):
        gradients = []
        for called in (compiled, eager):
            called.zero_grad()
            y = called(images(number))
            total = y.square().sum()
            y.data.mul_(1.5)
            total.backward()
            gradients.append(called.convolution.weight.grad)
        torch.testing.assert_close(*gradients)
        use(MemoryFormat.CHANNELS_LAST)
    assert in_channels_last() == {"forward"}, "all that is saved lies as given"


def test_a_backward_pass_whose_graph_was_left_meanwhile_gives_gradients_that_lie_as_eagers() -> None:
    model, eager = images_model(), images_model()
    compiled = torch.compile(model, backend="threadcast")
    for number in range(4):
        loss(compiled, number).backward()
        use(MemoryFormat.CHANNELS_LAST)
    assert in_channels_last() == BOTH
    for graph in compiled_graphs():
        lost = loss(compiled, 9)
        graph.leave("a test leaves it")
        found = torch.autograd.grad(lost, list(model.parameters()))
        wanted = torch.autograd.grad(loss(eager, 9), list(eager.parameters()))
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, other, check_stride=True)
