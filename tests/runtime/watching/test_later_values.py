"""Layers, attributes and whole dictionaries that come after the first calls are watched as the first ones were."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils.parametrize import register_parametrization

import threadcast
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.guards.module_values import ModuleChanged
from threadcast.capture.guards.python_state import PythonState

pytestmark = pytest.mark.usefixtures("one_thread")

X = torch.linspace(-1, 1, 6).reshape(3, 2)
FACTORS = {"forward": 1.0}


def follows(model: Callable[..., Tensor], changes: Sequence[Callable[[], Any]], *arguments: Any) -> None:
    """The optimised `model` gives what it gives itself, at first and after each change, and is captured each time."""
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            for _ in range(4):
                torch.testing.assert_close(call(*arguments), model(*arguments))
            assert call.reports[-1].reason == ""


class Net(nn.Module):
    """One layer, and attributes that are None at first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc: nn.Module = nn.Linear(2, 2)
        self.act: Any = None
        self.options: Any = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        x = x if self.options is None else x * self.options["factor"]
        return x if self.act is None else self.act(x)  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A layer with a factor of its own, public and private."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.scale, self._alpha = inner, 1.0, 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self._alpha * self.scale  # type: ignore[no-any-return]


def times_factor(x: Tensor) -> Tensor:
    return x * FACTORS["forward"]


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_what_an_optimised_function_reads_that_another_calls_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(threadcast.optimize(times_factor, cores=1, backends=False)) as inner:
        follows(lambda x: inner(x) + 1, [lambda: monkeypatch.setitem(FACTORS, "forward", 3.0)], X)


class Cubed(nn.Linear):
    """Reads what a linear layer does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** getattr(self, "_power", 3)


class Times(nn.Module):
    """A parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self._factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self._factor


def scaled_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return nn.functional.linear(x, layer.weight, layer.bias) * FACTORS["forward"]


LAYERS: dict[str, Sequence[Callable[[Any], Any]]] = {
    "an added layer": (
        lambda net: setattr(net, "fc", Adapted(net.fc)),
        lambda net: setattr(net.fc, "_alpha", 0.0),
    ),
    "another class": (
        lambda net: setattr(net.fc, "__class__", Cubed),
        lambda net: setattr(net.fc, "_power", 2),
    ),
    "a parametrization": (
        lambda net: register_parametrization(net.fc, "weight", Times()),
        lambda net: setattr(net.fc.parametrizations["weight"][0], "_factor", 0.0),
    ),
    "a forward of its own": (
        lambda net: setattr(net.fc, "forward", MethodType(scaled_forward, net.fc)),
        lambda net: FACTORS.update(forward=3.0),
    ),
}


@pytest.fixture(autouse=True)
def factors() -> None:
    FACTORS.update(forward=1.0)


@pytest.mark.parametrize("changes", LAYERS.values(), ids=list(LAYERS))
def test_what_a_layer_reads_that_comes_later_is_watched(changes: Sequence[Callable[[Any], Any]]) -> None:
    net = Net()
    follows(net, [lambda change=change: change(net) for change in changes], X)


class Powers(NamedTuple):
    first: float
    second: float


class Sums(NamedTuple):
    first: float
    second: float


class OfPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair: Any = Powers(1.0, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.pair
        return x**first + second if isinstance(self.pair, Powers) else x + first + second


def twice(layer: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(2)
    return layer


def exchange_parameters(net: Any) -> None:
    net.fc._parameters = {name: nn.Parameter(3 * value) for name, value in net.fc._parameters.items()}


DICTIONARIES: dict[str, Callable[[Any], Any]] = {
    "attributes of another model": lambda net: vars(net).update(vars(twice(copy.deepcopy(net)))),
    "another dictionary of attributes": lambda net: setattr(net, "__dict__", vars(twice(copy.deepcopy(net)))),
    "other layers": lambda net: setattr(net, "_modules", OrderedDict(fc=twice(copy.deepcopy(net.fc)))),
    "other parameters": exchange_parameters,
}


@pytest.mark.parametrize("change", DICTIONARIES.values(), ids=list(DICTIONARIES))
def test_exchanged_dictionaries_of_a_model_are_seen(change: Callable[[Any], Any]) -> None:
    net = Net()
    follows(net, [lambda: change(net)], X)
    follows(lambda x: net(x), [lambda: change(net)], X)


def test_exchanged_attributes_of_an_object_are_seen() -> None:
    options = Namespace(factor=1.0)

    def scaled(x: Tensor) -> Tensor:
        return x * options.factor  # type: ignore[no-any-return]

    follows(scaled, [lambda: setattr(options, "__dict__", {"factor": 3.0})], X)
    state = PythonState([scaled])
    options.__dict__ = {"factor": 5.0}
    assert state.restore() is not None
    assert options.factor == 3.0


class Marked(nn.Linear):
    """A layer that reads attributes of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = self.weight
        return super().forward(x) * getattr(weight, "factor", 1.0)


class Buffered(nn.Module):
    """Reads attributes of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scale: Any = self.scale
        return x * scale * (2 if scale.requires_grad else 1) * getattr(scale, "factor", 1.0)


def of_bytes() -> Net:
    net = Net()
    net.fc.forward = lambda x: x * len(net.options)  # type: ignore[method-assign]
    net.options, net.forward = b"1", lambda x: net.fc(x)  # type: ignore[method-assign]
    return net


OPTIONS = {"factor": 1.0}
OTHERS: dict[str, tuple[Callable[[], Any], Sequence[Callable[[Any], Any]]]] = {
    "functions where there was none": (
        Net, [lambda net, value=value: setattr(net, "act", value) for value in (torch.relu, torch.tanh, None)],
    ),
    "a dictionary where there was none": (
        Net, [lambda net: setattr(net, "options", OPTIONS), lambda net: OPTIONS.update(factor=3.0)],
    ),
    "a pair of another class": (OfPair, [lambda model: setattr(model, "pair", Sums(1.0, 2.0))]),
    "bytes": (of_bytes, [lambda net: setattr(net, "options", b"22")]),
    "attributes of a parameter": (
        lambda: Marked(2, 2),
        [*(lambda layer, value=value: setattr(layer.weight, "factor", value) for value in (3.0, 2.0)),
         lambda layer: delattr(layer.weight, "factor")],
    ),
    "attributes of buffers": (
        Buffered,
        [*(later := [lambda model, value=value: setattr(model.scale, "factor", value) for value in (3.0, 2.0)]),
         lambda model: setattr(model, "scale", torch.full((2,), 2.0)), *later],
    ),
    "whether a tensor is trained": (Buffered, [lambda model: model.scale.requires_grad_(True)]),
    "numbers of a later layer": (
        Net, [lambda net: setattr(net, "fc", Adapted(net.fc)), lambda net: setattr(net.fc, "scale", 0.0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("as_function", [False, True])
@pytest.mark.parametrize(("make", "changes"), OTHERS.values(), ids=list(OTHERS))
def test_other_values_and_attributes_are_seen(
    make: Callable[[], Any], changes: Sequence[Callable[[Any], Any]], as_function: bool
) -> None:
    OPTIONS.update(factor=1.0)
    model = make()
    called = (lambda x: model(x)) if as_function else model
    follows(called, [lambda change=change: change(model) for change in changes], X)


def test_a_call_that_sets_an_attribute_of_a_parameter_is_not_captured() -> None:
    layer: Any = nn.Linear(2, 2)

    def counted(self: Any, x: Tensor) -> Tensor:
        self.weight.calls = getattr(self.weight, "calls", 0) + 1
        return x * self.weight.calls  # type: ignore[no-any-return]

    layer.forward = MethodType(counted, layer)
    with pytest.raises(ModuleChanged, match="calls of a parameter or buffer is set"):
        capture_forward(layer, X)
    assert not hasattr(layer.weight, "calls")


Loss = Callable[[Tensor, Tensor], Tensor]


def trains_as_pytorch(
    make: Callable[[], tuple[nn.Module, Loss, torch.optim.Optimizer]],
    changes: Sequence[Callable[[nn.Module, Any], Any]],
) -> list[str]:
    """Compare training with eager PyTorch's, at first and after each change of model and loss; return the reasons of
    what was not captured."""
    mine, eager = make(), make()
    x, y = X.double(), torch.zeros(3, 2).double()
    reasons = []
    with closing(threadcast.optimize_training(*mine, cores=1)) as step:
        for change in (lambda *_: None, *changes):
            change(*mine[:2])
            change(*eager[:2])
            for _ in range(40):
                step(x, y)
                eager[2].zero_grad()
                torch.autograd.backward(eager[1](eager[0](x), y))
                eager[2].step()
            reasons.append(step.reports[-1].reason)
            for found, wanted in zip(*([*one[0].parameters(), *_parameters(one[1])] for one in (mine, eager))):
                torch.testing.assert_close(found, wanted)
    return reasons


def _parameters(loss: Any) -> list[Tensor]:
    return list(loss.parameters()) if hasattr(loss, "parameters") else []


class Weighted(nn.Module):
    """A loss with a parameter, as those that learn how much each task counts."""

    def __init__(self) -> None:
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)

    def forward(self, found: Tensor, wanted: Tensor) -> Tensor:
        return mse_loss(found, wanted) * torch.exp(-self.log_var) + self.log_var


class OfAClosure:
    """A function of the tensors of another loss, with its way to say which are trained."""

    def __init__(self) -> None:
        log_var = self.log_var = Weighted().log_var
        self.function = lambda found, wanted: mse_loss(found, wanted) * torch.exp(-log_var) + log_var

    def __call__(self, found: Tensor, wanted: Tensor) -> Tensor:
        return self.function(found, wanted)

    def parameters(self) -> list[Tensor]:
        return [self.log_var]

    def requires_grad_(self, trained: bool) -> None:
        self.log_var.requires_grad_(trained)


def of_a_weighted_loss(kind: Callable[[], Any]) -> tuple[nn.Module, Loss, torch.optim.Optimizer]:
    model, loss = Net().double(), kind()
    return model, loss, torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.1)


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
@pytest.mark.parametrize("kind", [Weighted, OfAClosure])
def test_parameters_of_a_loss_that_are_trained_later_are_trained(kind: Callable[[], Any]) -> None:
    changes = [lambda _, loss: loss.requires_grad_(True), lambda _, loss: loss.requires_grad_(False)]
    first, later, _ = trains_as_pytorch(lambda: of_a_weighted_loss(kind), changes)
    assert first == ""
    assert "parameters that are not the model's" in later


class Decay:
    """A loss that leaves out parameters by an attribute of theirs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, found: Tensor, wanted: Tensor) -> Tensor:
        decayed = [p.pow(2).sum() for p in self.model.parameters() if not getattr(p, "no_decay", False)]
        return mse_loss(found, wanted) + 0.5 * sum(decayed, start=torch.zeros(()))


def of_decayed_parameters(*, marked: bool) -> tuple[nn.Module, Loss, torch.optim.Optimizer]:
    model: Any = Net().double()
    if marked:
        model.fc.weight.no_decay = True
    return model, Decay(model), torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("marked", [False, True])
def test_a_loss_reads_attributes_of_parameters(marked: bool) -> None:
    changes = [lambda model, _: setattr(model.fc.bias, "no_decay", True)]
    assert trains_as_pytorch(lambda: of_decayed_parameters(marked=marked), changes) == ["", ""]


def test_a_deque_of_tensors_is_compared_by_its_items() -> None:
    recent = deque((torch.full((2,), float(i)) for i in range(3)), maxlen=3)
    follows(lambda x: x + sum(recent), [lambda: recent.append(torch.full((2,), 5.0)), lambda: recent.rotate()], X)
    numbers = deque([1])
    state = PythonState([lambda x: x * numbers[0]])
    assert state.changed() is None
    numbers[0] = True
    assert state.restore() == "numbers (a variable of <lambda>)"
    assert numbers[0] is not True
