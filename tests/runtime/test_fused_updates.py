"""Optimizers' steps by PyTorch's fused kernels: the same numbers, only where they are right; nothing is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import threadcast
import threadcast.runtime.fused_updates as module
from threadcast.runtime.engines.native.library import native_library
from threadcast.runtime.fused_fit import FusedFit
from threadcast.runtime.fused_updates import FusedUpdates, OptimizerUpdate, Steps, fused_updates
from threadcast.runtime.update_contest import LEAST_S, LOOP

Made = Callable[..., Optimizer]


class Clock:
    """Goes on at each reading: by `loop_s` seconds in a step by the optimizer's loop, by `fused_s` in a fused one, by
    `one_thread_s` in one on a single thread."""

    def __init__(self) -> None:
        self.loop_s, self.fused_s, self.one_thread_s = 0.02, 0.01, 0.015
        self.now_s = 0.0
        self.optimizer: Optimizer | None = None

    def __call__(self) -> float:
        assert self.optimizer is not None
        if self.optimizer.param_groups[0]["fused"]:
            self.now_s += self.one_thread_s if torch.get_num_threads() == 1 else self.fused_s
        else:
            self.now_s += self.loop_s
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def updates(clock: Clock) -> Iterator[FusedUpdates]:
    assert native_library() is not None
    found = FusedUpdates(clock=clock)
    yield found
    found.close()


def _parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3,), (33,), (5, 13), (), (300, 40))
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    images = torch.randn(2, 3, 4, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    return [*made, nn.Parameter(images)]


def _gradients(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.empty_like(one).copy_(torch.randn(one.shape, generator=generator)) for one in parameters]


class Pair:
    """Two equal optimizers: `mine`, whose parameters are adopted, and `theirs`."""

    def __init__(
        self,
        updates: FusedUpdates,
        clock: Clock,
        make: Made,
        parameters: list[nn.Parameter],
        steps: Steps | None = None,
    ) -> None:
        self.parameters, self.others = parameters, copy.deepcopy(parameters)
        self.mine, self.theirs = make(self.parameters), make(self.others)
        self._updates, self._clock = updates, clock
        clock.optimizer = self.mine
        updates.adopt(self.parameters, steps or Steps())
        self.fused: list[bool] = []
        """Of each step of `mine` whether it was fused."""
        self.made = 0

    @property
    def update(self) -> OptimizerUpdate:
        found = self._updates.of(self.mine)
        assert found is not None
        return found

    def steps(self, number: int, *, gradients: Callable[[list[nn.Parameter], int], list[Any]] = _gradients) -> None:
        """Make steps of both."""
        for _ in range(number):
            self.made += 1
            for parameters in (self.parameters, self.others):
                for one, gradient in zip(parameters, gradients(parameters, self.made), strict=True):
                    one.grad = gradient
            looks = self.mine.register_step_pre_hook(_Look(self.fused))
            self.mine.step()
            looks.remove()
            self.theirs.step()

    def settle(self) -> None:
        """Make steps until it is known how they are made fastest."""
        while self.update.kept is None:
            assert self.made < 1_000
            self.steps(1)
        self.steps(20)

    def agree(self) -> bool:
        """Whether both have the same numbers, but for rounding: a step changes numbers by 1e-3 and more."""
        torch.testing.assert_close(self.parameters, self.others, rtol=1e-5, atol=1e-6)
        mine, theirs = self.mine.state_dict()["state"], self.theirs.state_dict()["state"]
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        return True


class _Look:
    """Notes of each step whether it is fused, and that it has no more threads than the process."""

    only_counts = True

    def __init__(self, found: list[bool]) -> None:
        self._found, self._most = found, torch.get_num_threads()

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        assert torch.get_num_threads() <= self._most
        self._found.append(bool(optimizer.param_groups[0]["fused"]))


OPTIMIZERS: list[Made] = [
    lambda given: SGD(given, lr=0.01),
    lambda given: SGD(given, lr=0.01, momentum=0.9),
    lambda given: SGD(given, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda given: SGD(given, lr=0.01, momentum=0.9, dampening=0.2, maximize=True),
    lambda given: Adam(given, lr=0.01),
    lambda given: Adam(given, lr=0.01, amsgrad=True, weight_decay=0.1),
    lambda given: AdamW(given, lr=0.01, betas=(0.8, 0.95)),
    lambda given: AdamW([{"params": given[:2], "weight_decay": 0.0}, {"params": given[2:]}], lr=0.01),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_fused_steps_give_the_numbers_of_the_loop(updates: FusedUpdates, clock: Clock, make: Made) -> None:
    pair = Pair(updates, clock, make, _parameters())
    pair.settle()
    assert pair.update.kept
    assert not pair.fused[0]
    assert all(pair.fused[-20:])
    assert pair.agree()
    mine, theirs = pair.mine.state_dict(), pair.theirs.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"].keys() == theirs["state"].keys()


def test_the_loop_stays_where_it_is_faster(updates: FusedUpdates, clock: Clock) -> None:
    clock.fused_s = clock.one_thread_s = 0.05
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    assert True in pair.fused
    assert not any(pair.fused[-20:])
    assert pair.agree()


@pytest.mark.parametrize(("one_thread_s", "threads"), [(0.005, 1), (0.015, 2)])
def test_fewer_threads_are_kept_where_they_are_faster(
    updates: FusedUpdates, clock: Clock, two_threads: None, one_thread_s: float, threads: int
) -> None:
    clock.one_thread_s = one_thread_s
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
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
    class Sets(_Look):
        def __call__(self, optimizer: Optimizer, *_: object) -> None:
            super().__call__(optimizer)
            torch.set_num_threads(3)

    clock.one_thread_s = 0.005
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
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
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
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
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.steps(60)
    assert pair.update.over
    assert not any(pair.fused)


@pytest.mark.parametrize(
    "make",
    [
        lambda given: SGD(given, lr=0.01, foreach=True),
        lambda given: SGD(given, lr=0.01, foreach=False),
        lambda given: SGD(given, lr=0.01, fused=False),
        lambda given: Adam(given, lr=torch.tensor(0.01)),
    ],
)
def test_what_a_user_has_set_stays(updates: FusedUpdates, clock: Clock, make: Made) -> None:
    pair = Pair(updates, clock, make, _parameters())
    before = copy.deepcopy(pair.mine.param_groups[0]["fused"])
    pair.steps(20)
    assert not any(pair.fused)
    assert pair.mine.param_groups[0]["fused"] is before


def test_other_optimizers_and_parameters_are_left_alone(updates: FusedUpdates) -> None:
    adopted, others = _parameters(), _parameters()
    updates.adopt(adopted, Steps())
    assert updates.of(RMSprop(adopted, lr=0.01)) is None
    strangers = SGD(others, lr=0.01)
    assert updates.of(strangers) is None
    updates.adopt(others[:1], Steps())
    assert updates.of(strangers) is not None


def test_types_for_which_the_kernels_are_wrong_keep_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    """`_fused_sgd_` of PyTorch 2.13 leaves bfloat16 parameters of 16 elements and more as they were."""
    parameters = [nn.Parameter(one.detach().bfloat16()) for one in _parameters()]
    pair = Pair(updates, clock, OPTIMIZERS[1], parameters)
    pair.steps(20)
    for one, other in zip(pair.parameters, pair.others, strict=True):
        assert one.equal(other)


def test_a_gradient_in_another_order_goes_by_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()

    def reordered(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
        found = _gradients(parameters, step)
        found[2] = found[2].t().contiguous().t()
        return found

    pair.steps(5, gradients=reordered)
    assert not any(pair.fused[-5:])
    assert pair.agree()
    pair.steps(20)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_parameter_without_gradient_is_left_as_it_is(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    pair.settle()

    def some(parameters: list[nn.Parameter], step: int) -> list[Any]:
        return [None, *_gradients(parameters, step)[1:]]

    version = pair.parameters[0]._version
    pair.steps(5, gradients=some)
    assert pair.fused[-1]
    assert pair.parameters[0]._version == version
    assert pair.agree()


def test_gradients_that_come_and_go_are_not_looked_at_in_each_step(
    updates: FusedUpdates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    looks = []
    right = FusedFit._right
    monkeypatch.setattr(FusedFit, "_right", lambda *given: looks.append(1) or right(*given))  # type: ignore[func-returns-value]

    def some(parameters: list[nn.Parameter], step: int) -> list[Any]:
        found: list[Any] = _gradients(parameters, step)
        found[step % len(found)] = None
        return found

    pair.steps(2 * len(pair.parameters))  # all have state
    looks.clear()
    pair.steps(200, gradients=some)
    assert 0 < len(looks) < 20
    assert pair.agree()


def test_a_sparse_gradient_goes_by_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    parameters = [nn.Parameter(torch.ones(4, 3))]
    pair = Pair(updates, clock, lambda given: SGD(given, lr=0.01), parameters)
    pair.settle()
    assert pair.fused[-1]

    def sparse(given: list[nn.Parameter], step: int) -> list[Any]:
        return [one.to_sparse() for one in _gradients(given, step)]

    pair.steps(5, gradients=sparse)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_numbers_that_change_are_followed(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[6], _parameters())
    schedules = [torch.optim.lr_scheduler.StepLR(one, 10, gamma=0.5) for one in (pair.mine, pair.theirs)]
    for _ in range(200):
        pair.steps(1)
        for schedule in schedules:
            schedule.step()
    for one in (pair.mine, pair.theirs):
        one.param_groups[0]["weight_decay"] = 0.0
    pair.steps(10)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_loaded_state_is_used(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    saved = copy.deepcopy(pair.theirs.state_dict())
    pair.steps(5)
    for one in (pair.mine, pair.theirs):
        one.load_state_dict(copy.deepcopy(saved))
    pair.steps(5)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_state_that_was_emptied_begins_anew(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[3], _parameters())
    pair.settle()
    for one in (pair.mine, pair.theirs):
        one.state.clear()
    pair.steps(1)
    assert not pair.fused[-1]
    pair.steps(10)
    assert pair.agree()


def test_a_group_that_is_added_is_updated(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    for parameters, one in ((pair.parameters, pair.mine), (pair.others, pair.theirs)):
        parameters.append(nn.Parameter(torch.ones(7)))
        one.add_param_group({"params": parameters[-1:], "lr": 0.1})
    pair.steps(20)
    assert pair.fused[-1]
    assert pair.agree()


def test_a_step_is_chosen_once_its_closure_has_made_the_gradients(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    optimizers = (pair.mine, pair.parameters), (pair.theirs, pair.others)
    seen = []

    def steps(number: int, *, reordered: bool = False) -> None:
        for _ in range(number):
            pair.made += 1
            for optimizer, parameters in optimizers:

                def closure(optimizer: Optimizer = optimizer, parameters: list[nn.Parameter] = parameters) -> float:
                    assert torch.is_grad_enabled()
                    assert optimizer.param_groups[0]["fused"] is None
                    for one, gradient in zip(parameters, _gradients(parameters, pair.made), strict=True):
                        one.grad = gradient.t().contiguous().t() if reordered and one.dim() == 2 else gradient
                    return 0.5

                assert optimizer.step(closure) == 0.5

    def chosen(fit: FusedFit, optimizer: Optimizer) -> Any:
        seen.append(next_step(fit, optimizer))
        return seen[-1]

    next_step = FusedFit.next_step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedFit, "next_step", chosen)
        steps(300)
        assert pair.update.kept
        assert all(seen[-20:])
        seen.clear()
        steps(5, reordered=True)
        assert seen
        assert not any(seen)
    assert pair.agree()


def test_a_closure_that_raises_changes_nothing(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()

    def closure() -> float:
        raise ValueError("the closure's own")

    with pytest.raises(ValueError, match="the closure's own"):
        pair.mine.step(closure)
    assert pair.mine.param_groups[0]["fused"] is None
    pair.mine.register_step_pre_hook(_Look(pair.fused))
    pair.mine.step(closure=None)
    assert pair.fused[-1]


def test_writes_are_counted(updates: FusedUpdates, clock: Clock) -> None:
    """PyTorch's fused kernels do not: a backward pass that needs the weights from before would be wrong."""
    pair = Pair(updates, clock, OPTIMIZERS[6], _parameters())
    pair.settle()
    weight = pair.parameters[2]
    average = pair.mine.state[weight]["exp_avg"]
    versions = weight._version, average._version
    given = torch.ones(13, requires_grad=True)
    loss = (weight @ given).sum()
    pair.steps(1)
    assert pair.fused[-1]
    assert weight._version > versions[0]
    assert average._version > versions[1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


@pytest.mark.parametrize("make", [OPTIMIZERS[1], OPTIMIZERS[4]])
def test_a_parameter_that_has_grown_raises_as_in_pytorch(updates: FusedUpdates, clock: Clock, make: Made) -> None:
    """Its state has equal strides, and the kernels would write behind its end."""
    pair = Pair(updates, clock, make, _parameters())
    pair.settle()
    for parameters in (pair.parameters, pair.others):
        parameters[4].data = torch.cat([parameters[4].data, torch.ones(100, 40)])
    for one, parameters in ((pair.mine, pair.parameters), (pair.theirs, pair.others)):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="must match the size"):
                one.step()


def test_counts_of_steps_that_kernels_do_not_take_keep_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    pair.settle()
    for one in (pair.mine, pair.theirs):
        for state in one.state.values():
            state["step"] = state["step"].to(torch.int64)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_shared_count_of_steps_keeps_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    """The loop counts it once for each parameter, in between their updates."""
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    pair.settle()
    for one in (pair.mine, pair.theirs):
        count = torch.tensor(60.0)
        for state in one.state.values():
            state["step"] = count
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_settings_of_other_types_keep_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    """`0 == False`, but kernels take no number for it."""
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    for one in (pair.mine, pair.theirs):
        one.param_groups[0]["nesterov"] = 0
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_replaced_method_is_called(updates: FusedUpdates, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    before = SGD._init_group

    def reordered(self: SGD, group: Any, params: list[Tensor], grads: list[Tensor], buffers: list[Any]) -> bool:
        found = before(self, group, params, grads, buffers)
        for i, one in enumerate(grads):
            if one.dim() == 2:
                grads[i] = one.t().contiguous().t()
        return found

    monkeypatch.setattr(SGD, "_init_group", reordered)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_a_hook_after_the_step_sees_it_as_it_is(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    seen = []
    pair.mine.register_step_post_hook(lambda one, *_: seen.append(one.param_groups[0]["fused"]))
    pair.steps(3)
    assert seen == [None, None, None]


def test_processes_that_exchange_data_keep_the_loop(
    updates: FusedUpdates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their copies of a model stay equal because their updates are."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    pair.steps(60)
    assert not any(pair.fused)


def test_an_optimizer_that_cannot_be_a_key_makes_its_steps(updates: FusedUpdates) -> None:
    class Compared(SGD):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    parameters = _parameters()
    updates.adopt(parameters, Steps())
    for one in parameters:
        one.grad = torch.ones_like(one)
    before = parameters[0].detach().clone()
    Compared(parameters, lr=0.1).step()
    torch.testing.assert_close(parameters[0], before - 0.1)


def test_what_is_strange_about_an_optimizer_is_left_to_it(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    pair.mine.state[pair.parameters[0]]["momentum_buffer"] = "no tensor"
    with pytest.raises((AttributeError, TypeError)):
        pair.mine.step()
    assert pair.mine.param_groups[0]["fused"] is None


def test_a_hook_before_the_step_sees_it_as_it_is(updates: FusedUpdates, clock: Clock) -> None:
    """It may change gradients after they were looked at."""
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()

    def reorder(optimizer: Optimizer, *_: object) -> None:
        for one in optimizer.param_groups[0]["params"]:
            if one.dim() == 2:
                one.grad = one.grad.t().contiguous().t()

    for one in (pair.mine, pair.theirs):
        one.register_step_pre_hook(reorder)
    pair.steps(5)
    assert not any(pair.fused[-5:])
    assert pair.agree()


def test_deterministic_algorithms_keep_the_loop(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[4], _parameters())
    torch.use_deterministic_algorithms(True)
    try:
        pair.steps(60)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(pair.fused)


class Fails(_Look):
    """Breaks a step off, as a signal's handler may."""

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        super().__call__(optimizer)
        raise KeyboardInterrupt


def test_a_step_that_is_interrupted_leaves_no_setting_behind(
    updates: FusedUpdates, clock: Clock, two_threads: None
) -> None:
    clock.one_thread_s = 0.005
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
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
    parameters = _parameters()
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
    parameters = _parameters()
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
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters(), Steps(learn=lambda: True))
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
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters(), Steps(lambda: True, lambda: True))
    pair.steps(90)
    assert pair.update.kept is None
    pair.settle()
    assert pair.update.kept
    clock.fused_s = clock.one_thread_s = 0.05
    pair.steps(400)
    assert pair.update.over


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Dynamo imports it
def test_a_compiled_step_is_left_to_its_compiler(updates: FusedUpdates, clock: Clock) -> None:
    pair = Pair(updates, clock, OPTIMIZERS[1], _parameters())
    pair.settle()
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    step = torch.compile(pair.mine.step, backend=compiler)
    try:
        for _ in range(3):
            step()
            pair.theirs.step()
    finally:
        torch._dynamo.reset()
    called = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op.startswith("call_")}
    assert called
    assert not any("fused" in name for name in called)
    assert pair.agree()


def test_optimizers_are_not_kept_alive(updates: FusedUpdates, clock: Clock) -> None:
    parameters = _parameters()
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
