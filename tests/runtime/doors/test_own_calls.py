"""Learning by calls of its own, which nobody asked for, changes nothing that a program can see."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast
from threadcast.runtime.doors import own_calls
from threadcast.runtime.doors.own_calls import OwnCalls
from threadcast.runtime.tuner import variant_graphs
from threadcast.runtime.tuner.report import COMPILING

pytestmark = pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")

COUNTED = {"calls": 0}
SHAPE = (4, 3, 8, 8)


class Keeps(nn.Module):
    """Has one of everything that a call may change; `change` changes some of it."""

    calls: ClassVar[int] = 0

    def __init__(self, change: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(3))
        self.steps, self.log, self.cache, self.nested = 0, [1.0], {}, {"deep": [[torch.zeros(2)]]}
        self.numbers, self.mask = np.zeros(3), None
        self.change, self.own = change, torch.Generator()
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        extra = self.change(self, x)
        return y if extra is None else y + extra


def _grows(net: Keeps, x: Tensor) -> None:
    net.log.append(float(net.steps))
    net.cache[net.steps] = x.sum()
    net.steps += 1


def _caches(net: Keeps, x: Tensor) -> Tensor:
    if net.mask is None:
        net.mask = torch.ones(1)
    return net.mask


def _counts_elsewhere(net: Keeps, x: Tensor) -> None:
    COUNTED["calls"] += 1
    type(net).calls += 1
    net.numbers[0] += 1


def _draws_elsewhere(net: Keeps, x: Tensor) -> float:
    return random.random() + float(np.random.rand())


def _drops(net: Keeps, x: Tensor) -> Tensor:
    return net.drop(x).mean()


def _changes_mode(net: Keeps, x: Tensor) -> None:
    net.norm.eval()


def _writes_to_weights(net: Keeps, x: Tensor) -> None:
    net.conv.weight.mul_(0.5)
    net.conv.bias.data += 1


def _exchanges_weights(net: Keeps, x: Tensor) -> None:
    net.conv.bias.data = net.conv.bias.data + 1


def _exchanges_buffer(net: Keeps, x: Tensor) -> None:
    net.seen = net.seen + 1


def _writes_deep(net: Keeps, x: Tensor) -> None:
    net.nested["deep"][0][0].add_(1)
    net.nested["deep"].append([])


def _writes_to_gradient(net: Keeps, x: Tensor) -> None:
    if net.conv.weight.grad is not None:
        net.conv.weight.grad.add_(1)


def _draws_from_its_own(net: Keeps, x: Tensor) -> Tensor:
    return torch.rand(1, generator=net.own)


def _reseeds(net: Keeps, x: Tensor) -> None:
    torch.manual_seed(7)


def _nothing(net: Keeps, x: Tensor) -> None:
    """Only the batch norm changes."""


CHANGES = [
    _nothing, _drops, _grows, _caches, _counts_elsewhere, _draws_elsewhere, _changes_mode, _writes_to_weights,
    _exchanges_weights, _exchanges_buffer, _writes_deep, _writes_to_gradient, _reseeds,
    _draws_from_its_own,
]  # fmt: skip


def state_of(net: Keeps) -> dict[str, Any]:
    """All that a program can see of a network and of what it may change elsewhere."""
    own = {f"{at}.{name}": value for at, part in net.named_modules() for name, value in vars(part).items()}
    tensors = {**net.state_dict(), "gradient": net.conv.weight.grad}
    return {
        "own": copy.deepcopy({name: value for name, value in own.items() if name not in (".change", ".own")}),
        "tensors": {name: None if t is None else t.detach().clone() for name, t in tensors.items()},
        "strides": {name: None if t is None else t.stride() for name, t in tensors.items()},
        "identities": [(name, id(value)) for name, value in (*net.named_parameters(), *net.named_buffers())],
        "elsewhere": (dict(COUNTED), Keeps.calls),
        "random": (net.own.get_state(), torch.get_rng_state(), random.getstate(), repr(np.random.get_state())),
    }


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(wanted, nn.Module):
        assert_same(vars(found), vars(wanted))
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            assert_same(found[name], value)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


@pytest.fixture(autouse=True)
def told() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the model is in training mode")
        yield


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("closed_over", [False, True])
def test_learning_changes_nothing(change: Callable[..., Any], closed_over: bool) -> None:
    net = Keeps(change)
    net.conv.weight.grad = torch.ones_like(net.conv.weight)
    x = torch.rand(SHAPE)
    before, given = state_of(net), x.clone()
    with closing(threadcast.optimize((lambda image: net(image)) if closed_over else net, backends=False)) as call:
        call.learn(x, at_most_s=0.3)
        assert_same(state_of(net), before)
        assert torch.equal(x, given)
        with torch.no_grad():
            wanted, left = net(x), state_of(net)
        again = Keeps(change)
        again.load_state_dict(before["tensors"], strict=False)
    assert wanted.shape == again(x).shape
    assert left["tensors"]["norm.num_batches_tracked"] == 1


def test_calls_after_learning_give_what_pytorch_gives() -> None:
    net, x = Keeps(_drops), torch.rand(SHAPE)
    eager = copy.deepcopy(net)
    with closing(threadcast.optimize(net, backends=False)) as call, torch.no_grad():
        call.learn(x, at_most_s=1)
        for _ in range(3):
            state = torch.get_rng_state()
            wanted = eager(x)
            torch.set_rng_state(state)
            torch.testing.assert_close(call(x), wanted)
    assert_same({**net.state_dict()}, {**eager.state_dict()})


def _doubled(x: Tensor) -> Tensor:
    return x.mul_(2) + 1


def _one_row(x: Tensor) -> Tensor:
    x[0].add_(1)
    return x.exp()


def _resized(x: Tensor) -> Tensor:
    x.resize_(2, x.numel() + 1)
    return torch.ones(3)


def _by_data(x: Tensor) -> Tensor:
    x.data = x.data + 1
    x.numpy()[0] += 1
    return x.exp()


@pytest.mark.parametrize("function", [_doubled, _one_row, _resized, _by_data])
@pytest.mark.parametrize(
    "make", [lambda: torch.ones(5), lambda: torch.ones(1, 5).expand(4, 5)[:1], lambda: torch.ones(5).expand(1, 5)]
)
def test_an_example_that_calls_write_to_is_as_it_was_given(function: Any, make: Callable[[], Tensor]) -> None:
    x = make()
    seen: list[float] = []

    def noting(x: Tensor) -> Tensor:
        seen.append(float(x.flatten()[0]))
        return function(x)

    with closing(threadcast.optimize(noting, backends=False)) as call:
        call.learn(x, at_most_s=0.2)
    assert seen == []  # it is set back too
    assert torch.equal(x, make())
    assert x.shape == make().shape


@pytest.mark.parametrize("overlapping", [lambda: torch.ones(1).expand(4), lambda: torch.ones(6).unfold(0, 3, 1)])
def test_an_example_whose_numbers_share_memory_is_set_back(overlapping: Callable[[], Tensor]) -> None:
    x = overlapping()

    def first(x: Tensor) -> Tensor:
        x[0].add_(1)
        return x.exp()

    with closing(threadcast.optimize(first, backends=False)) as call:
        call.learn(x, at_most_s=0.2)
    assert torch.equal(x, overlapping())


def test_lists_and_dictionaries_among_the_arguments_are_set_back_after_each_call() -> None:
    lengths = {"most": 0}

    def longer(past: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        lengths["most"] = max(lengths["most"], len(past))
        past.append(past[-1] + 1)
        named["new"] = past[-1]
        return torch.stack(past).sum()

    past, named = [torch.ones(2)], {"old": torch.ones(2)}
    own = OwnCalls(longer, ((past,), {"named": named}))
    for _ in range(3):
        longer(past, named)
        own.after_call()
        assert (len(past), list(named)) == (1, ["old"])
    own.set_back()
    assert lengths == {"most": 0}


def test_what_raises_in_the_middle_of_learning_is_set_back_and_raised() -> None:
    net, x = Keeps(_nothing), torch.rand(SHAPE)

    def second_raises(net: Keeps, x: Tensor) -> None:
        net.steps += 1
        if net.steps == 2:
            raise KeyError("second")

    net.change = second_raises
    before = state_of(net)
    with closing(threadcast.optimize(net, backends=False)) as call, pytest.raises(KeyError, match="second"):
        call.learn(x)
    assert_same(state_of(net), before)


@pytest.mark.parametrize("generator", [np.random.default_rng(0), random.Random(0), iter(range(9))])
def test_what_cannot_be_set_back_is_not_called(generator: Any) -> None:
    called = []

    def draws(x: Tensor) -> Tensor:
        called.append(1)
        return x + generator.__sizeof__()

    with closing(threadcast.optimize(draws)) as call, pytest.warns(UserWarning, match="learns nothing from this"):
        call.learn(torch.ones(3))
    assert called == []


def test_where_copies_do_not_fit_into_memory_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Keeps(_grows)
    monkeypatch.setattr(own_calls, "free_bytes", lambda: 1000)
    with closing(threadcast.optimize(net)) as call, pytest.warns(UserWarning, match="GiB.*calls that you make"):
        call.learn(torch.rand(SHAPE))
    assert net.steps == 0


def test_the_memory_format_of_the_weights_is_as_before() -> None:
    net, x = nn.Conv2d(8, 8, 3).eval(), torch.rand(1, 8, 16, 16)
    given = net.weight.stride()
    with closing(threadcast.optimize(net, backends=False)) as call:
        call.learn(x, at_most_s=2)
        assert net.weight.stride() == given
        torch.testing.assert_close(call(x), net(x).detach())


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1)), "BatchNorm2d, Dropout"),
        (Keeps(_nothing), "BatchNorm2d, Dropout"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_training_mode_is_told_once(model: nn.Module, layers: str) -> None:
    x = torch.rand(SHAPE)
    match = rf"in training mode, in which {layers} .*model\.eval\(\)"
    with closing(threadcast.optimize(model, backends=False)) as call, pytest.warns(UserWarning, match=match) as told:
        call.learn(x, at_most_s=0.1)(x)
    assert sum("training mode" in str(one.message) for one in told) == 1


def _exported() -> nn.Module:  # `eval` of it raises
    module: nn.Module = torch.export.export(nn.BatchNorm1d(4).eval(), (torch.ones(5, 4),)).module()
    return module


@pytest.mark.parametrize(
    "model", [nn.Linear(3, 3), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), _exported()]
)
def test_without_layers_that_read_the_mode_nothing_is_told(model: nn.Module) -> None:
    assert own_calls.in_training(model) == []


def test_learning_does_not_count_the_time_in_which_the_engine_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def compiling(*, hurry: bool = False) -> bool:
        said.append(call.reports[0].reason)
        return len(said) < 9

    monkeypatch.setattr(variant_graphs, "is_being_compiled", compiling)
    with closing(threadcast.optimize(nn.Linear(8, 8).eval(), backends=False)) as call:
        call.learn(torch.rand(4, 8), at_most_s=1e-9)
        assert call.reports[0].reason == ""
    assert said[-1] == COMPILING
    assert len(said) >= 9


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adagrad])
def test_the_example_of_a_training_step_changes_nothing(make: type[torch.optim.Optimizer]) -> None:
    for change in CHANGES:
        net = Keeps(change)
        net.requires_grad_(True)
        if change not in (_writes_to_weights, _exchanges_weights):
            net.conv.weight.grad = torch.ones_like(net.conv.weight)
        optimizer, x = make(net.parameters(), lr=0.1), torch.rand(SHAPE)
        before, options = state_of(net), copy.deepcopy(optimizer.state_dict())
        with closing(
            threadcast.optimize_training(net, lambda y, t: (y - t).square().mean(), optimizer, x, 0.5, seconds=0.1)
        ):
            assert_same(state_of(net), before)
            assert_same(optimizer.state_dict(), options)
