"""What real loops do between steps, by every way in which threadcast runs them: as in eager PyTorch, or refused aloud.

`LOOPS` is the table. `REFUSED` names what a way leaves to PyTorch, by what it says; all else must run by plans.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils import parametrizations, prune
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from tests.runtime.compiled.conftest import graphs_alone, nothing_compiled  # noqa: F401
from tests.runtime.loops.reference import STEPS, Net, batch, sgd
from tests.runtime.loops.ways import WAYS, Loop, Run, Way, agrees_with_eager

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in .scheduler.step"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo's own look at inputs
]

REFUSED: dict[tuple[str, Way], str] = {
    ("a hook of a layer", "optimize_training"): "hooks on module Linear",
    ("a hook of a layer", "optimize"): "hooks on module Linear",
    ("a hook of a gradient", "optimize_training"): "hooks on a parameter",
    ("a hook of a gradient", "optimize"): "hooks on a parameter",
}
LOOSE = {"autocast inside of the model": 2e-2}
"""How far results may be apart where a loop computes in fewer bits than float64."""


def train(run: Run, model: nn.Module, optimizer: Optimizer | None = None, **options: Any) -> Any:
    """Train a model, and look at it after each step."""
    optimizer = optimizer or sgd(model)
    run.train(run.step(model, cross_entropy, optimizer, **options), model, steps=2 * STEPS)
    return model, optimizer


def between(*changes: Callable[[Any, Any], object], make: Callable[[], nn.Module] = Net) -> Loop:
    """A loop that trains before, between and after changes, which get the model and the optimizer."""

    def loop(run: Run) -> Any:
        model = make()
        optimizer = sgd(model)
        step = run.step(model, cross_entropy, optimizer)
        run.train(step, model)
        for phase, change in enumerate(changes, 1):
            change(model, optimizer)
            run.train(step, model, phase * STEPS)
        return model, optimizer

    return loop


def every_step(change: Callable[[Any], object], make: Callable[[], nn.Module] = Net) -> Loop:
    """A loop that changes the model after every step."""

    def loop(run: Run) -> Any:
        model = make()
        optimizer = sgd(model)
        step = run.step(model, cross_entropy, optimizer)
        for number in range(2 * STEPS):
            run.train(step, model, number, 1)
            change(model)
        return model, optimizer

    return loop


@torch.no_grad()
def one_number(model: Net, _: Optimizer) -> None:
    model.first.weight[2, 3] += 0.5


@torch.no_grad()
def clamp_weights(model: Net) -> None:
    for parameter in model.parameters():
        parameter.clamp_(-0.3, 0.3)


def swap_last(model: Net, optimizer: Optimizer) -> None:
    """A new last layer, which the optimizer gets in place of the old one."""
    torch.manual_seed(3)
    old = list(model.last.parameters())
    model.last = nn.Linear(8, 3).double()
    group = optimizer.param_groups[0]["params"]
    for was, now in zip(old, model.last.parameters(), strict=True):
        group[[id(p) for p in group].index(id(was))] = now
        optimizer.state.pop(was)


def moving_average(run: Run) -> Any:
    model = Net()
    average, optimizer = copy.deepcopy(model).requires_grad_(False), sgd(model)
    step = run.step(model, cross_entropy, optimizer)
    for number in range(2 * STEPS):
        run.train(step, model, number, 1)
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.1)
        run.look(average, batch(number)[0])
    return model, average, optimizer


def averaged_model(run: Run) -> Any:
    model = Net()
    average, optimizer = AveragedModel(model), sgd(model)
    step = run.step(model, cross_entropy, optimizer)
    for phase in range(3):
        run.train(step, model, phase * STEPS)
        average.update_parameters(model)
    return model, average, optimizer


def early_stopping(run: Run) -> Any:
    model = Net()
    optimizer = optim.NAdam(model.parameters(), lr=0.05)
    step = run.step(model, cross_entropy, optimizer)
    best, weights = float("inf"), None
    for epoch in range(4):
        run.train(step, model, epoch * STEPS)
        x, y = batch(500, size=20)
        run.look(model, x)
        found = cross_entropy(run.found[-1], y).item()
        if found < best:
            best, weights = found, copy.deepcopy(model.state_dict())
    assert weights is not None
    model.load_state_dict(weights)
    run.train(step, model, 100)
    return model, best, optimizer


def checkpoint_and_resume(run: Run) -> Any:
    model, again = Net(), Net(seed=7)
    model, optimizer = train(run, model)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    saved, optimizer = torch.load(file), sgd(again)
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return train(run, again, optimizer)


def search_for_a_rate(run: Run) -> Any:
    """The rate grows with every step; then all is put back, and training begins."""
    model = Net()
    optimizer = sgd(model)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    step = run.step(model, cross_entropy, optimizer)
    for number in range(2 * STEPS):
        optimizer.param_groups[0]["lr"] = 1e-3 * 1.2**number
        run.train(step, model, number, 1)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run.train(step, model)
    return model, optimizer


def last_batch(run: Run) -> Any:
    model = Net()
    optimizer = sgd(model)
    step = run.step(model, cross_entropy, optimizer)
    for epoch in range(4):
        run.train(step, model, 10 * epoch, 5)
        run.found.append(step(*batch(10 * epoch + 9, size=2)))
        run.look(model, batch(epoch, size=2)[0])
    run.train(step, model, 100)
    return model, optimizer


def batches_of_many_sizes(run: Run) -> Any:
    model = Net()
    optimizer = sgd(model)
    step = run.step(model, cross_entropy, optimizer)
    for number in range(5 * STEPS):
        run.found.append(step(*batch(number, size=3 + number % 5)))
        run.look(model, batch(number, size=3 + number % 5)[0])
    return model, optimizer


def clipping_by_value(run: Run) -> Any:
    """By a hook of the optimizer, so that it is the same in every way."""
    model = Net()
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.01))
    return train(run, model, optimizer)


def accumulation(run: Run) -> Any:
    model = Net()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    step = run.step(model, cross_entropy, optimizer, accumulate=3, clip_grad_norm=1.0)
    for _ in range(2):
        run.train(step, model, 0, 11)
        step.update()
    return model, optimizer


def scaled_losses(run: Run) -> Any:
    model = Net()
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5), sgd(model)
    step = run.step(model, cross_entropy, optimizer, scaler=scaler, clip_grad_norm=1.0)
    for number in range(3 * STEPS):
        x, y = batch(number)
        run.found.append(step(x * (torch.inf if number == STEPS else 1.0), y))  # the scaler skips this update
        model.norm.reset_running_stats()
        run.look(model, x)
    return model, optimizer, scaler.get_scale()


class Autocast(Net):
    def __init__(self) -> None:
        super().__init__()
        self.float()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x.float()).float()


def by_schedule(
    schedule_of: Callable[[Any], Any], run: Run, make: Callable[[nn.Module], Optimizer] = sgd, *, by_loss: bool = False
) -> Any:
    model = Net()
    optimizer = make(model)
    schedule = schedule_of(optimizer)
    step = run.step(model, cross_entropy, optimizer)
    for number in range(3 * STEPS):
        run.train(step, model, number, 1)
        schedule.step(*([run.found[-2]] if by_loss else []))
    return model, optimizer, optimizer.param_groups[0]["lr"]


def changing_groups(run: Run) -> Any:
    model = Net()
    optimizer = optim.AdamW([{"params": model.first.parameters()}, {"params": model.last.parameters(), "lr": 0.1}])
    step = run.step(model, cross_entropy, optimizer)
    for phase in range(3):
        for group in optimizer.param_groups:
            group.update(lr=group["lr"] / 2, weight_decay=0.01 * phase)
        run.train(step, model, phase * STEPS)
    return model, optimizer


def gradual_unfreezing(run: Run) -> Any:
    model = Net()
    optimizer = optim.SGD(model.last.parameters(), lr=0.05, momentum=0.9)
    model.first.requires_grad_(False)
    step = run.step(model, cross_entropy, optimizer)
    run.train(step, model)
    model.first.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.first.parameters()), "lr": 0.01})
    run.train(step, model, STEPS)
    return model, optimizer


def two_optimizers(run: Run) -> Any:
    """The step updates by the first and leaves the gradients of the others; the loop calls the second."""
    model = Net()
    first, second = sgd(model.first), optim.Adagrad([*model.last.parameters(), *model.norm.parameters()], lr=0.01)
    step = run.step(model, cross_entropy, first)
    for number in range(2 * STEPS):
        run.train(step, model, number, 1)
        second.step()
        second.zero_grad()
    return model, first, second


class Fooling(nn.Module):
    def __init__(self, generator: nn.Module, discriminator: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, noise: Tensor) -> Tensor:
        scores = self.discriminator(self.generator(noise))
        return binary_cross_entropy_with_logits(scores, torch.ones_like(scores))


def adversaries(run: Run) -> Any:
    """A generator and a discriminator take turns; each step trains one of them and leaves the other alone."""

    def net(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).double()

    torch.manual_seed(0)
    generator, discriminator = net(4, 6), net(6, 1)
    of_generator = optim.Adam(generator.parameters(), lr=0.01)
    of_discriminator = optim.Adam(discriminator.parameters(), lr=0.01)
    judge = run.step(discriminator, binary_cross_entropy_with_logits, of_discriminator)
    fool = run.step(Fooling(generator, discriminator), None, of_generator)
    drawn = torch.Generator().manual_seed(5)
    target = torch.cat([torch.ones(5, 1), torch.zeros(5, 1)]).double()
    for number in range(2 * STEPS):
        noise = torch.randn(5, 4, generator=drawn, dtype=torch.float64)
        run.look(generator, noise)
        run.found += [judge(torch.cat([batch(number)[0], run.found[-1]]), target), fool(noise)]
        of_discriminator.zero_grad()
    return generator, discriminator, of_generator, of_discriminator


class Checkpointed(Net):
    """Its running statistics are not computed again: eager PyTorch updates them twice, and AOTAutograd once."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(checkpoint(lambda x: self.first(x).tanh().sin(), x, use_reentrant=False))
        return result


class Distilled(nn.Module):
    """A student, and a teacher that may change too."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = Net(), Net(seed=3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher.eval()(x)
        return mse_loss(self.student(x), wanted)


def distillation(run: Run) -> Any:
    """A teacher that follows its student."""
    model = Distilled()
    optimizer = sgd(model.student)
    step = run.step(model, None, optimizer)
    for number in range(2 * STEPS):
        run.found.append(step(batch(number)[0]))
        run.look(model.student, batch(number)[0])
        if number % 5 == 4:
            with torch.no_grad():
                for mine, theirs in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
                    mine.lerp_(theirs, 0.5)
    return model, optimizer


def dropout() -> nn.Module:
    return nn.Sequential(Net(), nn.Dropout(0.3), nn.Linear(3, 3).double())


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    model[2].weight = model[0].weight
    return model


def normed_spectrum() -> nn.Module:
    """Its buffers change in every step, and not in evaluation."""
    model = Net()
    parametrizations.spectral_norm(model.last)
    return model


def hooked() -> nn.Module:
    model = Net()
    model.first.register_forward_hook(lambda module, given, result: result * 2)
    return model


def hooked_gradient() -> nn.Module:
    model = Net()
    model.first.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


def pruned(model: Net, _: Optimizer) -> None:
    """The layer's weight becomes a product, made by a hook before each call, and then a parameter again."""
    prune.l1_unstructured(model.first, "weight", 0.5)
    prune.remove(model.first, "weight")


def exchanged(model: Net, _: Optimizer) -> None:
    model.first.weight.data = model.first.weight.data * 0.5


def loaded(model: nn.Module, _: Optimizer) -> None:
    model.load_state_dict({name: value * 0.9 for name, value in model.state_dict().items()})


def loaded_by_assignment(model: nn.Module, optimizer: Optimizer) -> None:
    """The model gets other parameters, and the optimizer those, without any state."""
    optimizer.state.clear()
    model.load_state_dict({k: v.clone() * 0.9 for k, v in model.state_dict().items()}, assign=True)
    optimizer.param_groups[0]["params"] = list(model.parameters())


LOOPS: dict[str, Loop] = {
    "nothing": between(),
    "a layer is frozen and trained again": between(
        lambda model, _: model.first.requires_grad_(False), lambda model, _: model.first.requires_grad_(True)
    ),
    "weights are loaded": between(loaded),
    "other parameters are loaded": between(loaded_by_assignment),
    "weights are written by way of data": between(lambda model, _: model.first.weight.data.mul_(0.5)),
    "a row is written by way of data": between(lambda model, _: model.last.weight.data[0].fill_(1.0)),
    "data is exchanged": between(exchanged),
    "one number of a weight is written": between(one_number),
    "weights are clamped after each step": every_step(clamp_weights),
    "a moving average of weights": moving_average,
    "PyTorch's averaged model": averaged_model,
    "an attribute changes": between(lambda model, _: setattr(model, "factor", 0.5)),
    "an attribute of a layer changes": between(lambda model, _: setattr(model.norm, "momentum", 0.5)),
    "a buffer is written": between(lambda model, _: model.norm.reset_running_stats()),
    "a buffer is exchanged": between(lambda model, _: setattr(model.norm, "running_mean", torch.ones(8).double())),
    "a layer is swapped": between(swap_last),
    "a layer's statistics are fixed": between(lambda model, _: model.norm.eval(), lambda model, _: model.norm.train()),
    "a layer is pruned": between(pruned),
    "a conversion to another type": between(lambda model, _: model.float().double()),
    "early stopping with the best weights": early_stopping,
    "a smaller last batch": last_batch,
    "batches of many sizes": batches_of_many_sizes,
    "clipping by norm": lambda run: train(run, Net(), clip_grad_norm=0.1),
    "clipping by value": clipping_by_value,
    "accumulation with a rest": accumulation,
    "scaled losses, of which one overflows": scaled_losses,
    "autocast inside of the model": lambda run: train(run, Autocast()),
    "a schedule of rates and momentum": partial(
        by_schedule, lambda of: lr_scheduler.OneCycleLR(of, max_lr=0.2, total_steps=3 * STEPS + 1)
    ),
    "a schedule that waits for the loss": partial(
        by_schedule, lambda of: lr_scheduler.ReduceLROnPlateau(of, patience=1), by_loss=True
    ),
    "a search for the rate": search_for_a_rate,
    "settings of groups change": changing_groups,
    "a group is added": gradual_unfreezing,
    "two optimizers": two_optimizers,
    "adversaries": adversaries,
    "checkpoint and resume": checkpoint_and_resume,
    "activations computed again": lambda run: train(run, Checkpointed()),
    "a teacher that follows": distillation,
    "dropout": lambda run: train(run, dropout()),
    "tied weights": lambda run: train(run, tied()),
    "a spectral norm": lambda run: train(run, normed_spectrum()),
    "gradients are kept": lambda run: train(run, Net(), keep_grads=True),
    "a hook of a layer": lambda run: train(run, hooked()),
    "a hook of a gradient": lambda run: train(run, hooked_gradient()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop(name: str, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = LOOPS[name]
    agrees_with_eager(loop, way, monkeypatch, refused=REFUSED.get((name, way)), within=LOOSE.get(name, 1e-8))
