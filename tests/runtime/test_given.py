"""What `optimize` and `optimize_training` are given is checked before anything is done; the likely slip is named."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import threadcast
from tests.waiting import eventually
from threadcast.core import progress
from threadcast.core.errors import InvalidInput
from threadcast.runtime import optimize as optimize_file
from threadcast.runtime.optimized_model import OptimizedModel

MODEL, OTHER, X = nn.Linear(3, 3), nn.Linear(3, 3), torch.ones(2, 3)
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
        ((MODEL, mse_loss, OPTIMIZER), {}, "example=.*for training there is optimize_training"),
        ((MODEL, DataLoader([X])), {}, "example=.*DataLoader.* must be the arguments of one call; give one batch"),
        ((MODEL, iter([X])), {}, "example=.*give one batch"),
        ((MODEL, X, X), {}, "the example does not fit Linear.forward: too many positional arguments"),
        ((TwoInputs(), (X, X)), {}, "missing a required argument: 'mask'; give the arguments one by one"),
        ((lambda x, y: x, X), {}, "the example does not fit .*: missing a required argument: 'y'"),
        ((MODEL,), {"backends": "onnxruntime"}, "backends='onnxruntime' must be True or False"),
        ((MODEL,), {"progress": None}, "progress=None must be True or False"),
        ((MODEL,), {"dtypes": "float32"}, "dtypes='float32' must be"),
        ((MODEL,), {"dtypes": ("float16",)}, "dtypes=.'float16',. must be"),
        ((MODEL,), {"tolerance": "1e-2"}, "tolerance='1e-2' must be a number above 0"),
        ((MODEL,), {"tolerance": 0}, "tolerance=0 must be a number above 0"),
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
        ((nn.MSELoss(), MODEL, OPTIMIZER), {}, "optimizer=.*are model and loss exchanged"),
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
        ((OTHER, mse_loss, OPTIMIZER), {}, "optimizer=.*has none of them; was it made for another model"),
        ((MODEL, mse_loss, OPTIMIZER, X), {}, "the example must be the inputs and then the target"),
        ((MODEL, mse_loss, OPTIMIZER, X, X, X), {}, "the example does not fit Linear.forward: too many"),
        ((MODEL, mse_loss, OPTIMIZER, DataLoader([X]), X), {}, "example=.*give one batch"),
        ((MODEL, mse_loss, OPTIMIZER), {"accumulate": 0}, "accumulate=0 must be a number of batches"),
        ((MODEL, mse_loss, OPTIMIZER), {"clip_grad_norm": "1"}, "clip_grad_norm='1' must be a number above 0"),
        ((MODEL, mse_loss, OPTIMIZER), {"keep_grads": "no"}, "keep_grads='no' must be True or False"),
        ((MODEL, mse_loss, OPTIMIZER), {"scaler": True}, "scaler=True must be a torch.amp.GradScaler"),
        ((MODEL, mse_loss, OPTIMIZER), {"progress": 1}, "progress=1 must be True or False"),
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
        self.param_groups, self.step, self.zero_grad = wrapped.param_groups, wrapped.step, wrapped.zero_grad


@pytest.mark.parametrize(
    "given",
    [
        lambda: optimize_file.check_training(MODEL, None, Wrapping(OPTIMIZER), (X,)),
        lambda: optimize_file.check_training(MODEL, nn.MSELoss(), OPTIMIZER, (X, X)),
        lambda: optimize_file.check_inference(torch.relu, (X,)),
        lambda: optimize_file.check_inference(TwoInputs(), ()),
    ],
)
def test_other_optimizers_losses_and_functions_are_taken(given: Callable[[], None]) -> None:
    given()


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
    monkeypatch.setattr(optimize_file, "EXAMPLE_S", 1e-9)
    with closing(threadcast.optimize(MODEL.eval(), X, progress=wanted)) as call:
        call.learn(X, at_most_s=1e-9, progress=wanted)
    threadcast.optimize_training(MODEL, mse_loss, OPTIMIZER, X, X, progress=wanted).close()
    assert asked == [(wanted, 1e-9), (wanted, 1e-9), (wanted, math.inf)]
