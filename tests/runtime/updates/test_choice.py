"""On how many threads fused kernels make an optimizer's steps; nothing that a step changes is left behind."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import threadcast
from tests.runtime.updates.pairs import OPTIMIZERS, Fails, Look, Pair, some_parameters
from threadcast.runtime.updates.fused_fit import FEW, OF_THREAD
from threadcast.runtime.updates.fused_updates import FusedUpdates, fused_updates


@pytest.mark.parametrize(("numbers", "threads"), [(100, 1), (OF_THREAD, 1), (2 * OF_THREAD, 2), (9 * OF_THREAD, 2)])
def test_kernels_run_on_as_many_threads_as_parameters_are_worth(
    updates: FusedUpdates, two_threads: None, numbers: int, threads: int
) -> None:
    seen: list[int] = []

    class Counts(Look):
        def __call__(self, optimizer: Optimizer, *_: object) -> None:
            super().__call__(optimizer)
            seen.append(torch.get_num_threads())

    pair = Pair(updates, OPTIMIZERS[1], [nn.Parameter(torch.ones(numbers)) for _ in range(3)])
    pair.steps(6)
    pair.mine.register_step_pre_hook(Counts(pair.fused))
    pair.steps(1)
    assert (pair.fused[-1], seen, torch.get_num_threads()) == (True, [threads], 2)
    assert pair.agree()


def test_few_parameters_keep_the_loop() -> None:
    updates = FusedUpdates()
    try:
        for make, count in ((OPTIMIZERS[0], FEW[SGD]), (OPTIMIZERS[6], FEW[AdamW])):
            for number in (count - 1, count):
                pair = Pair(updates, make, [nn.Parameter(torch.ones(3)) for _ in range(number)])
                pair.steps(6)
                assert pair.fused[-1] == (number == count)
    finally:
        updates.close()


def test_a_number_of_threads_that_is_set_within_a_step_stays(updates: FusedUpdates, two_threads: None) -> None:
    class Sets(Look):
        def __call__(self, optimizer: Optimizer, *_: object) -> None:
            super().__call__(optimizer)
            torch.set_num_threads(3)

    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    hook = pair.mine.register_step_pre_hook(Sets(pair.fused))
    pair.mine.step()
    hook.remove()
    assert pair.fused[-1]
    assert torch.get_num_threads() == 3


def test_a_step_that_is_interrupted_leaves_no_setting_behind(updates: FusedUpdates, two_threads: None) -> None:
    """Another thread that saves the optimizer meanwhile keeps its own number of threads."""
    pair = Pair(updates, OPTIMIZERS[1], some_parameters())
    pair.steps(6)
    hook = pair.mine.register_step_pre_hook(Fails(pair.fused))
    with pytest.raises(KeyboardInterrupt):
        pair.mine.step()
    hook.remove()
    assert pair.fused[-1]
    threads = []

    def save() -> None:
        torch.set_num_threads(3)
        threads.append(pair.mine.state_dict()["param_groups"][0]["fused"])
        threads.append(torch.get_num_threads())

    other = Thread(target=save)
    other.start()
    other.join()
    assert threads == [None, 3]
    assert pair.mine.state_dict()["param_groups"][0]["fused"] is None
    assert (pair.mine.param_groups[0]["fused"], torch.get_num_threads()) == (None, 2)
    pair.steps(5)
    assert pair.fused[-1]
    assert pair.agree()


def test_optimizers_are_not_kept_alive(updates: FusedUpdates) -> None:
    parameters = some_parameters()
    updates.adopt(parameters)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer = SGD(parameters, lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(6):
        optimizer.step()
    assert updates.of(optimizer) is not None
    del schedule
    assert len(updates._updates) == 1
    del optimizer
    assert len(updates._updates) == 0
    del parameters, one
    assert len(updates._parameters) == 0


def test_updates_beside_a_plan_of_gradients_are_adopted() -> None:
    fused_updates().close()
    model = nn.Linear(4, 2)
    optimizer = AdamW(model.parameters(), lr=0.01)
    step = threadcast.optimize_training(model, nn.functional.mse_loss, optimizer, keep_grads=True)
    try:
        step(torch.ones(3, 4), torch.zeros(3, 2))
        assert fused_updates().of(optimizer) is not None
    finally:
        step.close()
        fused_updates().close()
