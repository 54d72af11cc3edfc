"""Which graphs have operators whose results jump, and what that means for steps that are compared with eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from threadcast.capture.graph.capture import capture_forward, capture_training
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.check.jumps import graph_has_jumps, has_jumps
from threadcast.runtime.check.shadow import Checked, checked_step

ACTIVATIONS: list[tuple[nn.Module, bool]] = [
    (nn.ReLU(), True), (nn.LeakyReLU(), True), (nn.Hardswish(), True), (nn.ReLU6(), True), (nn.PReLU(), True),
    (nn.GELU(), False), (nn.SiLU(), False), (nn.Tanh(), False), (nn.Softplus(), False),
]  # fmt: skip


@pytest.mark.parametrize(("activation", "jumps"), ACTIVATIONS, ids=lambda value: str(value).partition("(")[0])
def test_the_gradient_of_an_activation_jumps_where_its_slope_does(activation: nn.Module, jumps: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = capture_training(model, nn.functional.mse_loss, optimizer, [torch.randn(3, 4)], torch.randn(3, 2))
    assert has_jumps(captured) == jumps
    assert not has_jumps(capture_forward(model, torch.randn(3, 4))), "results themselves do not"


CALLS: list[tuple[Callable[[Tensor], Tensor], bool]] = [
    (lambda x: (x > 0) * x, True), (lambda x: x.topk(2).values, True), (lambda x: x.round(), True),
    (lambda x: x * (torch.arange(4) > 2), False), (lambda x: x.softmax(-1), False),
]  # fmt: skip


@pytest.mark.parametrize(("call", "jumps"), CALLS)
def test_comparisons_of_floating_point_numbers_jump(call: Callable[[Tensor], Tensor], jumps: bool) -> None:
    assert has_jumps(capture_forward(call, torch.randn(3, 4))) == jumps
    assert graph_has_jumps(make_fx(call, tracing_mode="fake")(torch.randn(3, 4))) == jumps


def _kinked(wrong: float = 0.0) -> tuple[FunctionalShadow, Callable[[Tensor], Tensor]]:
    """The gradient of a layer before a ReLU, and a plan that sums in another order, and may be wrong besides."""
    weight = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))

    def gradient(x: Tensor, h: Tensor) -> Tensor:
        return (h > 0).to(x.dtype).T @ x

    def plan(x: Tensor) -> Tensor:
        found = gradient(x, (x.double() @ weight.T.double()).to(x.dtype))
        return found + wrong * found.abs().max() * torch.eye(*found.shape)

    return FunctionalShadow(lambda x: gradient(x, x @ weight.T)), plan


def _near_jumps(seed: int) -> Tensor:
    """Inputs of which one sum each, beside the weights of `_kinked`, is nothing but rounding."""
    weight = torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    row = weight[seed].double()
    return (x - torch.outer(x @ row, row) / (row @ row)).float()


def test_signs_of_numbers_near_zero_are_chance_and_wrong_kernels_are_not() -> None:
    differed = 0
    for seed in range(10):
        shadowed, plan = _kinked()
        x = _near_jumps(seed)
        differed += not torch.equal(shadowed.eager(x), plan(x))
        assert checked_step(shadowed, plan, (x,), None, jumps=True).difference is None
        shadowed, wrong = _kinked(wrong=0.05)
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))  # eager has no sum near zero either
        assert checked_step(shadowed, wrong, (x,), None, jumps=True).difference is not None
    assert differed >= 8


Wrong = Callable[[Tensor, int], bool]
"""Whether a step on these inputs is wrong, of which so many came before."""


@pytest.mark.parametrize(
    ("wrong", "jumps", "refused"),
    [
        (lambda x, number: bool((x == 1).all()), True, False),
        (lambda x, number: bool((x == 1).all()), False, True),
        (lambda x, number: True, True, True),
        (lambda x, number: number == 0, True, True),
        (lambda x, number: bool((x == 1).all()) or number == 3, True, True),
        (lambda x, number: number < 14, True, False),
        (lambda x, number: number < 16, True, True),
    ],
    ids=["in this step", "no jump", "always", "a race", "a later race", "in six of eight steps", "in seven of eight"],
)
def test_a_small_difference_is_chance_where_an_operator_jumps_and_other_steps_agree(
    wrong: Wrong, jumps: bool, refused: bool
) -> None:
    checked, wanted = _checked_with(wrong, torch.ones(40), jumps=jumps)
    assert (checked.difference is not None) == refused
    assert torch.equal(checked.result, wanted)


def test_where_no_number_can_be_changed_a_small_difference_is_refused() -> None:
    checked, _ = _checked_with(lambda x, number: number < 2, torch.ones(40, dtype=torch.int64), jumps=True)
    assert checked.difference is not None


def _checked_with(wrong: Wrong, x: Tensor, *, jumps: bool) -> tuple[Checked, Tensor]:
    ran: list[Tensor] = []

    def eager(x: Tensor) -> Tensor:
        return torch.rand(40) * x

    def plan(x: Tensor) -> Tensor:
        ran.append(x)
        return torch.rand(40) * x + 0.05 * wrong(x, len(ran) - 1) * (torch.arange(40) == 3)

    torch.manual_seed(3)
    wanted, after = eager(x), torch.rand(1)
    torch.manual_seed(3)
    checked = checked_step(FunctionalShadow(eager), plan, (x,), None, jumps=jumps)
    assert torch.equal(torch.rand(1), after)
    assert bool((x == 1).all())
    return checked, wanted
