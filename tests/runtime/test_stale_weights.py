"""Backends make copies of weights. Whatever writes to the weights, an optimised call answers by the new ones."""

from __future__ import annotations

import copy
import io
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import threadcast
from tests.runtime.compiler import needs_compiler
from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.capture.graph.captured import Captured
from threadcast.runtime.backends import weight_versions
from threadcast.runtime.backends.weight_versions import WeightVersions, held_tensors
from threadcast.runtime.doors import optimized_call as optimize_file
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.tuner.candidate import Way, backend

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def numbers(seed: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=drawn), torch.randn(5, 3, generator=drawn)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(mse_loss(model(x), y))
    optimizer.step()


def update(model: nn.Module) -> None:
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1), *numbers(0))


def no_grad(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.add_(1)  # type: ignore[index,union-attr,operator]


def set_(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.ones_like(tensor))  # type: ignore[call-overload]


WRITES: dict[str, Callable[[Any], Any]] = {
    "an optimizer": update,
    "in place without gradients": no_grad,
    "one element, in place": lambda m: m[0].weight.detach()[0, 1].fill_(3),
    "a state": lambda m: m.load_state_dict({name: value + 1 for name, value in m.state_dict().items()}),
    "a saved state": lambda m: m.load_state_dict(_saved(m)),
    ".data in place": lambda m: m[0].weight.data.add_(1),
    ".data of another buffer": lambda m: m[1].running_mean.data.add_(1),
    ".data assigned": lambda m: setattr(m[3].bias, "data", m[3].bias.data + 1),
    ".data copied": lambda m: m[0].weight.data.copy_(torch.ones(8, 6)),
    "set_": lambda m: set_(m[3].bias),
    "NumPy": lambda m: m[0].weight.detach().numpy().__imul__(2),
    "NumPy, each element": lambda m: m[0].weight.detach().numpy().__setitem__(slice(None), 1),
    "running statistics": lambda m: m.train()(torch.ones(4, 6)) is m.eval(),
    "exchanged": lambda m: setattr(m, "3", nn.Linear(8, 3)),
}


def _saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save({name: value * 2 for name, value in model.state_dict().items()}, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_compiler)], ids=["python", "native"])
@pytest.mark.parametrize("write", [w for n, w in WRITES.items() if n != "exchanged"], ids=lambda w: "")
def test_writes_are_found(write: Callable[[Any], Any], native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library() if native else None
    monkeypatch.setattr(weight_versions, "loaded_library", lambda: library)
    model = network().eval()
    versions = WeightVersions(held_tensors(capture_forward(model, numbers(0)[0])))
    with torch.no_grad():
        model(numbers(0)[0])
    assert versions.unchanged()
    write(model)
    assert not versions.unchanged()


@pytest.mark.parametrize("native", [True, False])
def test_a_tensor_that_is_not_kept_alive_has_changed_once_it_is_freed(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native_library() if native else None
    monkeypatch.setattr(weight_versions, "loaded_library", lambda: library)
    kept, freed = torch.ones(6), torch.ones(6)
    versions, gone = WeightVersions([kept, freed], weakly=True), weakref.ref(freed)
    assert versions.unchanged()
    kept.data[5] = 2.0
    assert not versions.unchanged()
    kept.data[5] = 1.0
    assert versions.unchanged()
    del freed
    assert gone() is None
    assert not versions.unchanged()


def test_another_memory_format_is_no_write() -> None:
    model = nn.Conv2d(3, 4, 3)
    versions = WeightVersions(held_tensors(capture_forward(model, torch.ones(1, 3, 5, 5))))
    model.weight.data = model.weight.detach().contiguous(memory_format=torch.channels_last)
    assert versions.unchanged()
    model.weight.data.add_(1)
    assert not versions.unchanged()


ELSEWHERE = torch.ones(6)


class Scattered(nn.Module):
    """Reads tensors that are neither its parameters nor its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.in_list, self.in_dict = torch.ones(6), [torch.ones(6)], {"one": (torch.ones(6),)}
        in_closure = torch.ones(6)
        self.places = {
            "an attribute": self.plain, "a list": self.in_list[0], "a tuple in a dictionary": self.in_dict["one"][0],
            "a closure": in_closure, "a global": ELSEWHERE,
        }  # fmt: skip
        self.add = lambda x: x + in_closure

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x * self.plain + self.in_list[0] * self.in_dict["one"][0]) + ELSEWHERE


@pytest.mark.parametrize("place", Scattered().places)
def test_writes_to_other_tensors_that_a_module_reads_are_found(place: str) -> None:
    model = Scattered()
    versions = WeightVersions(held_tensors(capture_forward(model, torch.ones(2, 6))))
    assert versions.unchanged()
    model.places[place].mul_(1.5)
    assert not versions.unchanged()


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_a_captured_training_step_counts_as_a_write(optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = network()
    captured = capture_training(model, mse_loss, optimizer(model.parameters()), numbers(0)[:1], numbers(0)[1])
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        before, value = tensor._version, tensor.clone()
        captured.run()
        assert tensor._version > before, name
        assert not torch.equal(tensor, value) or name == "0.bias", name  # before a normalisation, which takes it out


def test_a_captured_call_that_writes_nothing_counts_none_and_one_that_writes_to_an_argument_does() -> None:
    model, (x, _) = network().eval(), numbers(0)
    captured = capture_forward(model, x)
    versions = WeightVersions(held_tensors(captured))
    captured.run()
    assert versions.unchanged()
    captured = capture_forward(lambda given: given.add_(1), x)
    before = x._version
    captured.run(x)
    assert x._version > before


class _CopyingBackend:
    """A search that finds a backend at once, which keeps a copy of the weights and takes no time at all."""

    calls = 0
    """Calls of all such backends."""
    working = True

    def __init__(self, module: nn.Module, _: object, captured: Captured, *__: object, **___: object) -> None:
        self._module, self._captured, self.over, self.broken_off = module, captured, False, False

    def start(self) -> None:
        """Nothing to start."""

    def poll(self, **_: object) -> Way | None:
        """The backend; none where the module trains."""
        self.over, module = True, self._module
        if module.training:
            return None
        frozen, answers = copy.deepcopy(module), dict[int, Tensor]()

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
            _CopyingBackend.calls += 1
            (x,) = args
            if id(x) not in answers:
                answers[id(x)] = frozen(x)
            return answers[id(x)]

        return Way(backend("copy"), run, WeightVersions(held_tensors(self._captured)).unchanged)

    def wait(self, _: float) -> float:
        """Nothing to wait for."""
        return 1.0

    def close(self) -> None:
        """Nothing to end."""


def test_training_and_inference_of_one_model_by_turns_are_as_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize_file, "BackendSearch", _CopyingBackend)
    mine, eager = network().double(), network().double()
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (mine, eager)]
    x = numbers(99)[0].double()
    with (
        closing(threadcast.optimize_training(mine, mse_loss, optimizers[0], cores=1)) as step,
        closing(threadcast.optimize(mine, cores=1)) as call,
    ):
        for turn in range(12):
            mine.train()
            eager.train()
            for seed in range(5):
                given, wanted = (value.double() for value in numbers(5 * turn + seed))
                step(given, wanted)
                trained(eager, optimizers[1], given, wanted)
            mine.eval()
            eager.eval()
            for _ in range(25):
                torch.testing.assert_close(call(x), eager(x).detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("planned_at_once")
@pytest.mark.parametrize("name", [".data in place", "exchanged"])
def test_an_optimised_call_answers_by_what_was_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "101")  # of some 15,000 calls until it has settled
    monkeypatch.setattr(optimize_file, "BackendSearch", _CopyingBackend)
    model, (x, _) = network().eval(), numbers(0)
    before = _CopyingBackend.calls
    with closing(threadcast.optimize(model, cores=1).learn(x)) as call, torch.no_grad():
        assert _CopyingBackend.calls > before, "the copy has taken part"
        WRITES[name](model)
        for _ in range(8):
            torch.testing.assert_close(call(x), model(x), rtol=1e-5, atol=1e-6)
