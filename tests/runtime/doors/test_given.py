"""What `optimize` and `optimize_training` are given is checked before anything is done; the likely slip is named."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.functional import mse_loss
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import threadcast
from tests.waiting import eventually
from threadcast.core import progress
from threadcast.core.errors import InvalidInput
from threadcast.runtime.doors import optimize as optimize_file
from threadcast.runtime.doors.optimized_model import OptimizedModel

MODEL, X = nn.Linear(3, 3), torch.ones(2, 3)
OPTIMIZER = SGD(MODEL.parameters(), lr=0.1)


class TwoInputs(nn.Module):
    """Takes two tensors."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask


@pytest.fixture
def nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes after the checks fails."""
    monkeypatch.setattr(optimize_file, "_machine", None)


@pytest.mark.usefixtures("nothing_is_done")
@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((None,), {}, "function=None must be a model"),
        (("model.pt",), {}, "function='model.pt' must be a model"),
        ((nn.Linear,), {}, "function=<class .* must be a model .*that is a class, give an object of it"),
        ((MODEL.state_dict(),), {}, "function=<OrderedDict> must be a model"),
        ((X, MODEL), {}, "function=.*are model and example exchanged"),
        ((SGD, X), {}, "function=<class .* must be a model .*that is a class, give an object of it"),
        ((MODEL,), {"backends": "onnxruntime"}, "backends='onnxruntime' must be True or False"),
        ((MODEL,), {"progress": "no"}, "progress='no' must be True or False"),
        ((MODEL,), {"seconds": 0}, "seconds=0 must be seconds above 0"),
        ((MODEL,), {"seconds": None}, "seconds=None must be seconds above 0"),
    ],
)
def test_what_cannot_be_optimised_for_inference_is_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        threadcast.optimize(*arguments, **options)


def scheduler() -> StepLR:
    return StepLR(SGD(MODEL.parameters(), lr=0.1), 1)


@pytest.mark.usefixtures("nothing_is_done")
@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ((MODEL, OPTIMIZER, nn.CrossEntropyLoss()), {}, "loss=.*are loss and optimizer exchanged"),
        ((OPTIMIZER, mse_loss, MODEL), {}, "model=.*are model and optimizer exchanged"),
        ((nn.MSELoss(), MODEL, OPTIMIZER), {}, "model=.*are model and loss exchanged"),
        ((nn.Linear, mse_loss, OPTIMIZER), {}, "model=.*that is a class"),
        ((lambda x: x, mse_loss, OPTIMIZER), {}, "model=.* must be a model"),
        ((MODEL, nn.MSELoss, OPTIMIZER), {}, "loss=.*that is a class"),
        ((MODEL, "mse", OPTIMIZER), {}, "loss='mse' must be a function"),
        ((MODEL, mse_loss(X, X), OPTIMIZER), {}, "loss=.* must be a function"),
        ((MODEL, mse_loss, SGD), {}, "optimizer=.*that is a class"),
        (
            (MODEL, mse_loss, MODEL.parameters()),
            {},
            "optimizer=.* must be an optimizer, such as torch.optim.SGD",
        ),
        ((MODEL, mse_loss, list(MODEL.parameters())), {}, "optimizer=<list> must be an optimizer"),
        ((MODEL, mse_loss, None), {}, "optimizer=None must be an optimizer"),
        ((MODEL, mse_loss, scheduler()), {}, "optimizer=.*StepLR.*give its .optimizer"),
        ((MODEL, mse_loss, OPTIMIZER, X), {}, "the example must be the inputs and then the target"),
        ((MODEL, mse_loss, OPTIMIZER), {"accumulate": 0}, "accumulate=0 must be a number of batches"),
        ((MODEL, mse_loss, OPTIMIZER), {"clip_grad_norm": "1"}, "clip_grad_norm='1' must be a number above 0"),
        ((MODEL, mse_loss, OPTIMIZER), {"keep_grads": "no"}, "keep_grads='no' must be True or False"),
        ((MODEL, mse_loss, OPTIMIZER), {"scaler": True}, "scaler=True must be a torch.amp.GradScaler"),
        ((MODEL, mse_loss, OPTIMIZER), {"scaler": GradScaler}, "scaler=.*that is a class"),
        ((MODEL, mse_loss, OPTIMIZER), {"progress": 2}, "progress=2 must be True or False"),
        ((MODEL, mse_loss, OPTIMIZER), {"seconds": float("nan")}, "seconds=nan must be seconds above 0"),
        ((MODEL, mse_loss, OPTIMIZER, (X,)), {}, "the example must be the inputs and then the target"),
    ],
)
def test_what_cannot_be_optimised_for_training_is_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        threadcast.optimize_training(*arguments, **options)


class Wrapping:
    """An optimizer that wraps one, and is none by its class."""

    def __init__(self, wrapped: Optimizer) -> None:
        self.param_groups, self.state, self.zero_grad = wrapped.param_groups, wrapped.state, wrapped.zero_grad
        self._wrapped = wrapped

    def step(self) -> None:
        self._wrapped.step()


def masked(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A decorator that adds an argument."""

    @functools.wraps(forward)
    def called(*args: Any) -> torch.Tensor:
        return forward(*args, torch.full((2, 3), 2.0))

    return called


class Masked(TwoInputs):
    """Its `forward` is given one argument more than its caller gives."""

    forward = masked(TwoInputs.forward)


class Packing(nn.Module):
    """Its `forward` takes in one what its callers give one by one."""

    def __call__(self, *args: torch.Tensor) -> Any:
        return super().__call__(args)

    def forward(self, packed: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return packed[0] + packed[1]


class Doubled:
    """A class that is called as a function, of one argument or of an output and a target."""

    def __new__(cls, x: torch.Tensor, target: torch.Tensor | float = 0.0) -> Any:
        return 2 * x if isinstance(target, float) else mse_loss(2 * x, target)


@pytest.mark.filterwarnings("ignore:threadcast")
@pytest.mark.parametrize(
    ("function", "arguments", "result"),
    [
        (masked(lambda x, mask: x * mask), (X,), 2 * X),
        (Masked().eval(), (X,), 2 * X),
        (Packing().eval(), (X, X), 2 * X),
        (Doubled, (X,), 2 * X),
        (lambda data: 2 * data[0][0], (TensorDataset(X[None]),), 2 * X),
        (lambda batches, x: x + x, (iter([X]), X), 2 * X),
        (lambda x, optimizer: x + x, (X, OPTIMIZER), 2 * X),
    ],
)
def test_whatever_can_be_called_with_the_example_is_taken(
    function: Any, arguments: tuple[Any, ...], result: torch.Tensor
) -> None:
    with closing(threadcast.optimize(function, *arguments, backends=0, progress=0, seconds=1e-9)) as call:
        assert torch.equal(call(*arguments), result)


class Scaled(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(x * self.scale, target)


@pytest.mark.parametrize(
    ("model", "loss", "optimizer"),
    [
        (MODEL, None, Wrapping(OPTIMIZER)),
        (MODEL, nn.MSELoss(), OPTIMIZER),
        (MODEL, Doubled, OPTIMIZER),
        (MODEL, scaled := Scaled(), SGD(scaled.parameters(), lr=0.1)),
    ],
)
def test_other_optimizers_and_losses_are_taken(model: nn.Module, loss: Any, optimizer: Any) -> None:
    with closing(threadcast.optimize_training(model, loss, optimizer, keep_grads=1)):
        pass


def test_an_optimizer_of_other_parameters_is_warned_of_since_it_may_get_the_models_later() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    model = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match=r"none of the model's parameters; was it made for another model"):
        step = threadcast.optimize_training(model, mse_loss, optimizer)
    optimizer.add_param_group({"params": list(model.parameters())})
    before = model.weight.detach().clone()
    with closing(step):
        step(X, X)
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("cores", ["2", 2.5, True, [], [-1], (0, "a"), [[0]], object()])
def test_cores_are_a_number_or_cpus(cores: Any) -> None:
    with pytest.raises(InvalidInput, match=r"cores=.* must be a number of cores, or CPUs of these"):
        threadcast.optimize(MODEL, cores=cores)
    with pytest.raises(InvalidInput, match=r"cores=.* must be a number of cores, or CPUs of these"):
        threadcast.optimize(MODEL).resize(cores)


def test_paths_and_times_are_checked_before_anything_is_run(tmp_path: Any) -> None:
    call = threadcast.optimize(MODEL)
    for path in (tmp_path, tmp_path / "none" / "page.html", 3):
        with pytest.raises(InvalidInput, match=r"path=.* must be a file to write, in a folder that there is"):
            call.timeline(path)
    for most_s in ("3", 0, float("nan"), None):
        with pytest.raises(InvalidInput, match=r"at_most_s=.* must be seconds above 0"):
            call.learn(X, at_most_s=most_s)


def test_a_loader_or_what_training_needs_as_example_is_told_with_why_nothing_is_learned() -> None:
    for example, said in (((DataLoader([X]),), "one batch"), ((mse_loss, OPTIMIZER), "there is optimize_training")):
        with pytest.warns(UserWarning, match=f"learns nothing from this example: .*; .*{said}"):
            threadcast.optimize(MODEL, *example).close()


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_an_example_in_a_tuple_is_told_beside_the_models_own_error() -> None:
    with pytest.raises(TypeError, match="linear") as error:
        threadcast.optimize(MODEL.eval(), (X,))
    assert "given one by one" in error.value.__notes__[0]


@pytest.mark.parametrize(("wanted", "level", "shown"), [(True, 0, True), (False, 0, False), (True, 40, False)])
def test_what_is_learned_is_shown_unless_progress_or_warnings_are_off(
    wanted: bool, level: int, shown: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "_LOOK_EVERY_S", 0.01)
    caplog.set_level(level, "threadcast")
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    call = threadcast.optimize(MODEL.eval())
    with call._showing(wanted, 900.0):
        assert not shown or eventually(said.getvalue)
    beginning = "threadcast learns inference of Linear: capturing: 0 of 900 s"
    assert said.getvalue()[: len(beginning)] == (beginning if shown else "")


@pytest.mark.parametrize("wanted", [True, False])
def test_progress_is_for_all_that_blocks(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[bool, float]]()

    def showing(_: object, wanted: bool, most_s: float) -> AbstractContextManager[object]:
        asked.append((wanted, most_s))
        return nullcontext()

    monkeypatch.setattr(OptimizedModel, "_showing", showing)
    options: dict[str, Any] = {"progress": wanted, "seconds": 1e-9}
    with closing(threadcast.optimize(MODEL.eval(), X, **options)) as call:
        call.learn(X, at_most_s=1e-9, progress=wanted)
    threadcast.optimize_training(MODEL, mse_loss, OPTIMIZER, X, X, **options).close()
    assert asked == 3 * [(wanted, 1e-9)]
