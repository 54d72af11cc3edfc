"""Which kernels make an optimizer's steps, on how many threads; nothing that a step changes is left behind."""

from __future__ import annotations

import random
from threading import Thread

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

import threadcast
import threadcast.runtime.updates.fused_updates as module
from tests.runtime.updates.pairs import OPTIMIZERS, Clock, Fails, Look, Pair, some_parameters
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.events import Ran
from threadcast.runtime.updates.fused_fit import FusedFit
from threadcast.runtime.updates.fused_updates import LEAST_S, LOOP, FusedUpdates, OptimizerUpdate, Steps, fused_updates


def test_the_loop_stays_where_it_is_faster(updates: FusedUpdates, clock: Clock) -> None:
    clock.fused_s = clock.one_thread_s = 0.05
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.settle()
    assert True in pair.fused
    assert not any(pair.fused[-20:])
    assert pair.agree()


@pytest.mark.parametrize(("one_thread_s", "threads"), [(0.005, 1), (0.015, 2)])
def test_fewer_threads_are_kept_where_they_are_faster(
    updates: FusedUpdates, clock: Clock, two_threads: None, one_thread_s: float, threads: int
) -> None:
    clock.one_thread_s = one_thread_s
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.settle()
    assert pair.update.kept == threads
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    pair.steps(3)
    assert torch.get_num_threads() == 1
    assert pair.agree()


def test_a_number_of_threads_that_is_set_within_a_step_stays(
    updates: FusedUpdates, clock: Clock, two_threads: None
) -> None:
    class Sets(Look):
        def __call__(self, optimizer: Optimizer, *_: object) -> None:
            super().__call__(optimizer)
            torch.set_num_threads(3)

    clock.one_thread_s = 0.005
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.settle()
    hook = pair.mine.register_step_pre_hook(Sets(pair.fused))
    pair.mine.step()
    hook.remove()
    assert pair.fused[-1]
    assert torch.get_num_threads() == 3


def test_other_threads_do_not_set_back_what_an_interrupted_one_has_lowered(
    updates: FusedUpdates, clock: Clock, two_threads: None
) -> None:
    clock.one_thread_s = 0.005
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.settle()
    hook = pair.mine.register_step_pre_hook(Fails(pair.fused))
    with pytest.raises(KeyboardInterrupt):
        pair.mine.step()
    hook.remove()
    threads = []

    def save() -> None:
        torch.set_num_threads(3)
        threads.append(pair.mine.state_dict()["param_groups"][0]["fused"])
        threads.append(torch.get_num_threads())

    other = Thread(target=save)
    other.start()
    other.join()
    assert threads == [None, 3]
    torch.set_num_threads(1)
    torch.ones(1)
    pair.steps(3)
    assert pair.agree()


def test_a_step_that_takes_next_to_no_time_is_left_alone(updates: FusedUpdates, clock: Clock) -> None:
    clock.loop_s = LEAST_S / 2
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.steps(60)
    assert pair.update.over
    assert not any(pair.fused)


def test_a_step_that_is_interrupted_leaves_no_setting_behind(
    updates: FusedUpdates, clock: Clock, two_threads: None
) -> None:
    clock.one_thread_s = 0.005
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters())
    pair.settle()
    assert pair.update.kept == 1
    hook = pair.mine.register_step_pre_hook(Fails(pair.fused))
    with pytest.raises(KeyboardInterrupt):
        pair.mine.step()
    hook.remove()
    assert pair.fused[-1]
    assert pair.mine.state_dict()["param_groups"][0]["fused"] is None
    assert torch.get_num_threads() == 2
    assert pair.mine.param_groups[0]["fused"] is None
    pair.steps(5)
    assert pair.fused[-1]
    assert pair.agree()


def test_nothing_is_compared_beside_a_planner(clock: Clock) -> None:
    updates = FusedUpdates(clock=clock)
    parameters = some_parameters()
    optimizer = SGD(parameters, lr=0.01)
    works = True
    updates.adopt(parameters, Steps(disturbed=lambda: works))
    clock.optimizer = optimizer
    for one in parameters:
        one.grad = torch.ones_like(one)
    try:
        for _ in range(300):
            optimizer.step()
        found = updates.of(optimizer)
        assert found is not None
        assert found.kept is None
        works = False
        for _ in range(300):
            optimizer.step()
        assert found.kept
    finally:
        updates.close()


def test_updates_are_compared_once_more_when_the_rest_of_the_step_is_known(clock: Clock) -> None:
    updates = FusedUpdates(clock=clock)
    parameters = some_parameters()
    optimizer = SGD(parameters, lr=0.01)
    learns = True
    updates.adopt(parameters, Steps(learn=lambda: learns))
    clock.optimizer = optimizer
    clock.fused_s = clock.one_thread_s = 0.05
    for one in parameters:
        one.grad = torch.ones_like(one)

    def steps() -> int | None:
        for _ in range(400):
            optimizer.step()
        found = updates.of(optimizer)
        assert found is not None
        return found.kept

    try:
        assert steps() == LOOP
        clock.fused_s = clock.one_thread_s = 0.01
        assert steps() == LOOP
        learns = False
        assert steps()
        clock.fused_s = clock.one_thread_s = 0.05
        assert steps(), "not a third time"
    finally:
        updates.close()


def test_a_step_that_goes_by_the_loop_is_not_looked_at(
    updates: FusedUpdates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.fused_s = clock.one_thread_s = 0.05
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters(), Steps(learn=lambda: True))
    pair.settle()
    assert pair.update.kept == LOOP
    monkeypatch.setattr(FusedFit, "next_step", None)
    pair.steps(100)
    assert pair.agree()


def test_what_never_settles_is_waited_for_some_thousand_steps(
    updates: FusedUpdates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a graph for the last batch of each epoch."""
    monkeypatch.setattr(module, "_PATIENCE", 100)
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters(), Steps(lambda: True, lambda: True))
    pair.steps(90)
    assert pair.update.kept is None
    pair.settle()
    assert pair.update.kept
    clock.fused_s = clock.one_thread_s = 0.05
    pair.steps(400)
    assert pair.update.over


def test_optimizers_are_not_kept_alive(updates: FusedUpdates, clock: Clock) -> None:
    parameters = some_parameters()
    updates.adopt(parameters, Steps())
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer = SGD(parameters, lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    clock.optimizer = optimizer
    for _ in range(300):
        optimizer.step()
    found = updates.of(optimizer)
    assert found is not None
    assert found.kept
    del schedule, found
    assert len(updates._updates) == 1
    clock.optimizer = None
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


@pytest.mark.parametrize("seed", range(20))
def test_numbers_of_threads_are_compared_to_the_end_on_a_machine_that_becomes_slower_and_faster(
    seed: int, two_threads: None
) -> None:
    draw, now_s = random.Random(seed), 0.0
    torch.set_num_threads(8)
    update = OptimizerUpdate(SGD, Steps(), lambda: now_s)
    torch.set_num_threads(2)
    for number in range(3_000):
        way = update._next_way()
        if update.kept is not None:
            break
        seconds = draw.choice([0.8e-3, 1e-3, 1.2e-3]) * (3 if (number // draw.choice([20, 40])) % 2 else 1)
        update.observe(Ran(now_s, seconds, seconds))
        now_s += seconds
    assert update.kept == way


def test_kernels_are_compared_only_within_what_may_be_spent(updates: FusedUpdates, clock: Clock) -> None:
    clock.fused_s = clock.one_thread_s = 0.05
    budget = Budget(0.0)
    budget.charge(budget.left_s)
    pair = Pair(updates, clock, OPTIMIZERS[1], some_parameters(), Steps(budget=budget))
    pair.steps(200)
    assert pair.fused.count(True) <= 2, "what has begun is broken off"
    budget.ran(0.0, eager_s=10.0)
    pair.settle()
    assert True in pair.fused[200:]
    assert budget.spent_s > 0.0
