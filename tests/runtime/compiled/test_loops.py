"""What ordinary training loops do beside forward, backward and update: it works, since it is PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tests.runtime.compiled.running import perceptron, rows, run_until_settled, runners, seeded, trains_as_eager
from tests.runtime.small_training import batch, net, same_state
from threadcast.runtime.doors.compile_backend import compiled_calls
from threadcast.runtime.updates.fused_updates import fused_updates

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

PLANNED = {"forward": ["plan"], "backward": ["plan"]}


def module_of(called: Any) -> nn.Module:
    """The module itself of a compiled or plain one."""
    found: nn.Module = getattr(called, "_orig_mod", called)
    return found


def accumulated_and_clipped(model: Any, number: int) -> None:
    for part in range(3):
        model(rows(3 * number + part)).square().mean().backward()
    nn.utils.clip_grad_norm_(module_of(model).parameters(), 0.1)


def backward_twice(model: Any, number: int) -> Tensor:
    """In each second step the graph is kept after backward passes that have kept none."""
    loss: Tensor = model(rows(number)).square().mean()
    if number % 2:
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return loss


def two_calls_before_a_backward_pass(model: Any, number: int) -> Any:
    return (model(rows(number)) - model(rows(number + 1))).square().mean()


@pytest.mark.parametrize("loss", [accumulated_and_clipped, backward_twice, two_calls_before_a_backward_pass])
def test_backward_passes_may_be_several_or_late(loss: Callable[[Any, int], Any]) -> None:
    assert trains_as_eager(perceptron, loss) == PLANNED


def test_losses_are_scaled_and_learning_rates_follow_a_schedule() -> None:
    mine, eager = perceptron(), perceptron()
    compiled = torch.compile(mine, backend="threadcast")
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (mine, eager)]
    schedules = [torch.optim.lr_scheduler.OneCycleLR(one, 1e-2, total_steps=5_000) for one in optimizers]
    scalers = [torch.amp.GradScaler("cpu", growth_interval=5) for _ in range(2)]

    def train(seed: int) -> None:
        for called, optimizer, schedule, scaler in zip((compiled, eager), optimizers, schedules, scalers, strict=True):
            optimizer.zero_grad()
            scaler.scale(called(rows(seed)).square().mean()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()

    run_until_settled(train)
    assert runners() == PLANNED
    same_state(mine, eager)


def test_hooks_on_modules_tensors_and_gradients_are_called() -> None:
    def halved(_: nn.Module, gradients: Any, __: Any) -> tuple[Tensor]:
        return (gradients[0] * 0.5,)

    def clamped(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-0.01, 0.01)

    def hooked() -> nn.Module:
        model: Any = perceptron()
        model[0].register_forward_hook(lambda _, __, output: output * 1.5)
        model[2].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
        model[0].weight.register_hook(lambda gradient: gradient * 2)
        model[1].register_full_backward_hook(halved)
        model[2].weight.register_post_accumulate_grad_hook(clamped)
        return model

    found = trains_as_eager(hooked, lambda model, step: model(rows(step)).square().mean())
    assert {runner for of_role in found.values() for runner in of_role} == {"plan"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_are_checkpointed_around_the_compiled_model(reentrant: bool) -> None:
    def with_dropout() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)).double()

    def loss(model: Any, step: int) -> Any:
        return checkpoint(model, rows(step).requires_grad_(), use_reentrant=reentrant).square().mean()

    found = trains_as_eager(with_dropout, loss)
    assert {runner for of_role in found.values() for runner in of_role} == {"plan"}


@pytest.mark.compared
def test_a_compiled_part_is_checkpointed_several_times_in_a_step_while_calls_are_compared() -> None:
    """What a call saves when it is computed again must be what it would have saved the first time."""

    def part(h: Tensor, weight: Tensor) -> Tensor:
        h = h @ weight
        return torch.sin(h) * torch.exp(-h * h)

    compiled = torch.compile(part, backend="threadcast")
    weights = [torch.randn(8, 8, dtype=torch.float64, requires_grad=True) for _ in range(6)]

    def gradients(call: Any, step: int) -> Any:
        h = rows(step)
        for weight in weights:
            h = checkpoint(call, h, weight, use_reentrant=False)
        return torch.autograd.grad(h.sum(), weights)

    def train(step: int) -> None:
        torch.testing.assert_close(gradients(compiled, step), gradients(part, step), rtol=1e-9, atol=1e-11)

    run_until_settled(train)
    for step in range(30):
        train(step)
    plain = rows(0).requires_grad_()
    for _ in range(300):  # whole calls are compared, and may be left to PyTorch
        compiled(plain, weights[0]).sum().backward()
    for step in range(20):
        train(step)


class Checkpointed(nn.Module):
    """A part of the model is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = perceptron(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(checkpoint(self.first, x, use_reentrant=False))
        return result


class CheckpointedNorm(nn.Module):
    """What is computed again draws random numbers, and has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16, bias=False).double(), nn.Linear(16, 4).double()
        self.norm, self.drop = nn.BatchNorm1d(16).double(), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        def part(x: Tensor) -> Tensor:
            found: Tensor = self.drop(self.norm(self.first(x))).tanh()
            return found

        result: Tensor = self.last(checkpoint(part, x, use_reentrant=False))
        return result


@pytest.mark.compared
@pytest.mark.parametrize("make", [Checkpointed, CheckpointedNorm])
def test_models_with_checkpoints_inside_are_trained_as_in_eager(make: Callable[[], nn.Module]) -> None:
    """AOTAutograd would update statistics once, and eager PyTorch does twice; Dynamo's program drops other numbers."""
    trains_as_eager(seeded(make), lambda model, step: model(rows(step)).square().mean(), steps=10)
    assert compiled_calls() == []


def test_parameters_are_frozen_and_trained_again() -> None:
    def loss(model: Any, step: int) -> Any:
        module_of(model)[0].weight.requires_grad_(step % 4 != 0)  # type: ignore[index]
        return model(rows(step)).square().mean()

    found = trains_as_eager(perceptron, loss)
    assert found["forward"] == found["backward"] == ["plan", "plan"]


def test_weights_are_replaced_between_steps() -> None:
    def loss(model: Any, step: int) -> Any:
        weight = module_of(model)[0].weight  # type: ignore[index]
        if step % 3 == 0:
            weight.data = weight.data * 0.9
        if step % 5 == 0:
            module_of(model).load_state_dict({k: v * 0.9 for k, v in module_of(model).state_dict().items()})
        return model(rows(step)).square().mean()

    assert trains_as_eager(perceptron, loss) == PLANNED


def test_a_model_is_evaluated_between_steps_with_its_running_statistics() -> None:
    mine, eager = net(), net()
    compiled: Any = torch.compile(mine, backend="threadcast")

    def train(seed: int) -> None:
        x, y = batch(seed)
        compiled.eval(), eager.eval()
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-8, atol=1e-10)
        compiled.train(), eager.train()
        for called, model in ((compiled, mine), (eager, eager)):
            cross_entropy(called(x), y).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter -= 0.05 * parameter.grad
                    parameter.grad = None

    run_until_settled(train)
    assert runners() == {**PLANNED, "inference": ["plan"]}
    same_state(mine, eager)


@pytest.mark.parametrize("inside", [False, True])
def test_autocast_around_or_inside_of_the_model_is_eagers(inside: bool) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = perceptron().float()

        def forward(self, x: Tensor) -> Any:
            with torch.autocast("cpu", torch.bfloat16) if inside else nullcontext():
                return self.layers(x)

    mine, eager = Cast(), Cast()
    compiled = torch.compile(mine, backend="threadcast")

    def call(seed: int) -> None:
        for called, model in ((compiled, mine), (eager, eager)):
            model.zero_grad()
            with nullcontext() if inside else torch.autocast("cpu", torch.bfloat16):
                output = called(rows(seed).float())
            assert output.dtype is torch.bfloat16
            output.float().square().mean().backward()
        for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=1e-3)

    run_until_settled(call)
    assert runners() == PLANNED


@pytest.mark.parametrize("how", [None, "option", "setting"])
def test_optimizers_of_a_programs_parameters_are_fused_unless_operators_are_not(
    how: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "setting":
        monkeypatch.setenv("THREADCAST_ENGINE_FUSE", "false")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    own, others = torch.optim.AdamW(model.parameters()), torch.optim.AdamW(nn.Linear(2, 2).parameters())
    options = {"fuse": False} if how == "option" else {}
    compiled = torch.compile(model, backend="threadcast", options=options)
    for _ in range(3):
        own.zero_grad()
        compiled(torch.ones(2, 8)).sum().backward()
        own.step()
    assert (fused_updates().of(own) is not None) == (how is None)
    assert fused_updates().of(others) is None
