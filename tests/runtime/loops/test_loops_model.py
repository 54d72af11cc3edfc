"""What loops do to the model between steps: each is as in eager PyTorch, or PyTorch runs it and a warning says why."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from tests.runtime.loops.reference import STEPS, Make, Net, batch, sgd, trains_as_eager

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


def train(step: Any, first: int = 0, steps: int = STEPS) -> list[Tensor]:
    return [step(*batch(seed)) for seed in range(first, first + steps)]


def test_plain() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        optimizer = sgd(model)
        return train(make(model, cross_entropy, optimizer)), model, optimizer

    trains_as_eager(loop)


def test_frozen_layers() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        model.first.requires_grad_(False)
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop)


def test_freezing_and_unfreezing_on_the_way() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        losses = []
        for phase, trained in enumerate((True, False, True)):
            model.first.requires_grad_(trained)
            losses += train(step, phase * STEPS)
        return losses, model

    trains_as_eager(loop)


def test_loading_a_state_dict_on_the_way() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        best = None
        for phase in range(3):
            train(step, phase * STEPS)
            best = best or copy.deepcopy(model.state_dict())
        model.load_state_dict(best)
        return train(step, 99), model

    trains_as_eager(loop)


def test_writing_by_way_of_data() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.first.weight.data.mul_(0.5)
        model.last.weight.data[0] = 1.0
        return train(step, STEPS), model

    trains_as_eager(loop)


def test_exchanging_data() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.first.weight.data = torch.ones(8, 6, dtype=torch.float64)
        return train(step, STEPS), model

    trains_as_eager(loop)


def test_exchanging_a_parameter_that_the_optimizer_does_not_know() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.last.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
        return train(step, STEPS), model, model.last.bias.grad

    trains_as_eager(loop)


def test_a_moving_average_of_weights() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        average = copy.deepcopy(model).requires_grad_(False)
        step = make(model, cross_entropy, sgd(model))
        for seed in range(2 * STEPS):
            step(*batch(seed))
            with torch.no_grad():
                for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(now, 0.1)
        return model, average

    trains_as_eager(loop)


def test_pytorchs_averaged_model() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        average = AveragedModel(model)
        step = make(model, cross_entropy, sgd(model))
        for phase in range(3):
            train(step, phase * STEPS)
            average.update_parameters(model)
        return model, average

    trains_as_eager(loop)


def test_an_attribute_that_changes_now_and_then() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        losses = train(step)
        model.factor = 0.5
        return losses, train(step, STEPS), model

    trains_as_eager(loop)


def test_an_attribute_that_changes_in_every_step_is_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        for seed in range(4 * STEPS):
            model.factor = 1 - 0.01 * seed
            step(*batch(seed))
        return model

    trains_as_eager(loop, refused="factor")


def test_writing_to_a_buffer() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.norm.reset_running_stats()
        return train(step, STEPS), model

    trains_as_eager(loop)


def test_exchanging_a_buffer() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        model.norm.running_mean = torch.ones(8, dtype=torch.float64)
        return train(step, STEPS), model

    trains_as_eager(loop)


def test_swapping_a_module() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        train(step)
        last = nn.Linear(8, 3).double()
        second = sgd(last)
        model.last = last
        for seed in range(STEPS):  # the new layer's gradients are left in `.grad`, as those of a second optimizer
            step(*batch(seed))
            second.step()
            second.zero_grad()
        return model

    trains_as_eager(loop)


def test_evaluation_in_between() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, sgd(model))
        found = []
        for phase in range(3):
            train(step, phase * STEPS)
            model.eval()
            with torch.no_grad():
                found.append(model(batch(1_000)[0]))
            model.train()
        return found, model

    trains_as_eager(loop)


def test_training_with_running_statistics_fixed() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        model.norm.eval()
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop)


def test_dropout() -> None:
    def loop(make: Make) -> Any:
        model = nn.Sequential(Net(), nn.Dropout(0.3), nn.Linear(3, 3).double())
        return train(make(model, cross_entropy, sgd(model))), model, torch.rand(3)

    trains_as_eager(loop)


def test_tied_weights() -> None:
    def loop(make: Make) -> Any:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
        model[2].weight = model[0].weight
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop)


def test_parametrised_weights() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        torch.nn.utils.parametrizations.weight_norm(model.first)
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop)


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: self.norm(self.first(x)).tanh(), x, use_reentrant=False)
        result: Tensor = self.last(hidden)
        return result


def test_checkpointed_activations() -> None:
    def loop(make: Make) -> Any:
        model = Checkpointed()
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop)


class Scaled(Net):
    """Its scale is a buffer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64, requires_grad=True))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 10.0}], ids=str)
def test_a_buffer_that_is_trained_is_refused_aloud(options: dict[str, Any]) -> None:
    def loop(make: Make) -> Any:
        model = Scaled()
        optimizer = torch.optim.SGD([*model.parameters(), model.scale], lr=0.05, momentum=0.9)
        return train(make(model, cross_entropy, optimizer, **options), steps=2 * STEPS), model, optimizer

    trains_as_eager(loop, refused="a buffer requires a gradient")


def test_a_hook_of_a_layer_is_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        model.first.register_forward_hook(lambda module, given, result: result * 2)
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop, refused="hooks on module Linear")


def test_a_hook_of_a_gradient_is_refused_aloud() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        return train(make(model, cross_entropy, sgd(model))), model

    trains_as_eager(loop, refused="hooks on a parameter")


def test_checkpoint_and_resume() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        optimizer = sgd(model)
        train(make(model, cross_entropy, optimizer))
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        again = Net(seed=7)
        optimizer = sgd(again)
        again.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        return train(make(again, cross_entropy, optimizer), STEPS), again, optimizer

    trains_as_eager(loop)


def test_conversion_to_another_type() -> None:
    def loop(make: Make) -> Any:
        model = Net()
        step = make(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.05))
        train(step)
        model.first.weight.data.round_(decimals=3)
        model.float().double()
        return train(step, STEPS), model

    trains_as_eager(loop)
