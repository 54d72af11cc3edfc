"""Batches, losses and several models in loops: each as in eager PyTorch, or PyTorch runs it and a warning says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.runtime.loops.reference import STEPS, Make, Net, batch, sgd, trains_as_eager

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


class OwnLoss(nn.Module):
    """A model that returns its loss, with other results, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, labels: Tensor, weight: Tensor | None = None) -> dict[str, Any]:
        scores = self.net(x)
        return {"loss": cross_entropy(scores, labels, weight=weight), "scores": scores}


def test_a_loss_inside_of_the_model_and_named_inputs() -> None:
    def loop(make: Make) -> Any:
        model = OwnLoss()
        step = make(model, None, sgd(model))
        losses = [step(**dict(zip(("x", "labels"), batch(seed), strict=True))) for seed in range(STEPS)]
        weight = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
        losses += [step(batch(seed)[0], labels=batch(seed)[1], weight=weight) for seed in range(STEPS)]
        return losses, model

    trains_as_eager(loop)


class OfDictionary(Net):
    def forward(self, x: dict[str, Tensor], scale: float = 1.0) -> Tensor:  # type: ignore[override]
        return super().forward(x["left"] + scale * x["right"])


def test_batches_that_are_dictionaries_and_a_named_input_beside_a_target() -> None:
    def loop(make: Make) -> Any:
        model = OfDictionary()
        step = make(model, cross_entropy, sgd(model))
        losses = []
        for seed in range(2 * STEPS):
            x, y = batch(seed)
            losses.append(step({"left": x, "right": x.cos()}, y, scale=0.5))
        return losses, model

    trains_as_eager(loop)


def test_a_loss_of_several_parts_with_weights_and_smoothing() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(scores, target, weight=weight, label_smoothing=0.1) + 0.01 * scores.square().mean()

    def loop(make: Make) -> Any:
        model = Net()
        return [make(model, loss, sgd(model))(*batch(seed)) for seed in range(3)], model

    def loop_of_one(make: Make) -> Any:
        model = Net()
        step = make(model, loss, sgd(model))
        return [step(*batch(seed)) for seed in range(STEPS)], model

    trains_as_eager(loop_of_one)
    trains_as_eager(loop)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_without_kept_casts_around_each_step(dtype: torch.dtype) -> None:
    def loop(make: Make) -> Any:
        model = Net().float()
        step = make(model, cross_entropy, sgd(model))
        losses = []
        for seed in range(STEPS):
            with torch.autocast("cpu", dtype, cache_enabled=False):
                losses.append(step(batch(seed)[0].float(), batch(seed)[1]))
        return losses, model

    trains_as_eager(loop, within=2e-2)


def test_autocast_that_some_steps_have_and_others_do_not() -> None:
    def loop(make: Make) -> Any:
        model = Net().float()
        step = make(model, cross_entropy, sgd(model))
        losses = []
        for seed in range(3 * STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=seed % 2 == 0, cache_enabled=False):
                losses.append(step(batch(seed)[0].float(), batch(seed)[1]))
        return losses, model

    trains_as_eager(loop, within=2e-2)


@pytest.mark.parametrize("before", [0, 3 * STEPS])
def test_autocast_around_steps_is_refused_aloud(before: int) -> None:
    """One context around several steps, after `before` steps in contexts of their own, in which a plan might run."""

    def loop(make: Make) -> Any:
        model = Net().float()
        step = make(model, cross_entropy, sgd(model))
        losses = []
        for seed in range(before):
            with torch.autocast("cpu", torch.bfloat16):
                losses.append(step(batch(seed)[0].float(), batch(seed)[1]))
        with torch.autocast("cpu", torch.bfloat16):
            return [*losses, *(step(batch(seed)[0].float(), batch(seed)[1]) for seed in range(STEPS))], model

    trains_as_eager(loop, refused="autocast is on around a training step")


def test_single_precision_stays_within_rounding() -> None:
    def loop(make: Make) -> Any:
        model = Net().float()
        step = make(model, cross_entropy, sgd(model))
        return [step(batch(seed)[0].float(), batch(seed)[1]) for seed in range(STEPS)], model

    trains_as_eager(loop, within=1e-4)


def test_inputs_that_require_a_gradient_are_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model, x = Net(), batch(0)[0].requires_grad_()
        step = make(model, cross_entropy, sgd(model))
        return [step(x, batch(0)[1]) for _ in range(STEPS)], model, x.grad

    trains_as_eager(loop, refused="requires a gradient")


def test_a_target_that_decides_by_value() -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(scores, target) if target.sum() > 3 else scores.square().mean()

    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, loss, sgd(model))
        return [step(*batch(seed)) for seed in range(2 * STEPS)], model

    trains_as_eager(loop)


def test_a_number_that_each_batch_has_another_of_is_refused_aloud() -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(scores, target) * (1 + int((target * torch.arange(len(target))).sum()))

    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, loss, torch.optim.SGD(model.parameters(), lr=1e-3))
        return [step(*batch(seed)) for seed in range(2 * STEPS)], model

    trains_as_eager(loop, refused="numbers that it reads out of tensors")
