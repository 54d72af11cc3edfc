"""What is written in place is fused where nobody sees that, and stays where somebody does."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing, suppress

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.compiler import needs_compiler
from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.operators import library
from threadcast.runtime.operators.fuse import KIND, fused, loops_of
from threadcast.runtime.operators.out_of_place import may_be_out_of_place

pytestmark = needs_compiler


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def hidden(x: Tensor) -> Tensor:
    values = x * 2
    values.sigmoid_()
    values.mul_(x).add_(1)
    return values - x


def parts(x: Tensor) -> Tensor:
    a, b, c = (x @ x).unsafe_chunk(3, 1)
    a.sigmoid_()
    b.tanh_()
    return a * b.mul_(c)


def a_view_of_the_result(x: Tensor) -> Tensor:
    values = (x * 2).exp_()
    return values.t() + values


@pytest.mark.parametrize("function", [hidden, parts, a_view_of_the_result])
def test_what_nobody_else_reads_is_fused(function: Callable[[Tensor], Tensor]) -> None:
    x = numbers(6, 6)
    captured = fused(capture_forward(function, x))
    assert captured is not None
    assert not [op.kind for op in captured.graph.ops if op.kind.endswith("_")]
    torch.testing.assert_close(captured.run(x), function(x))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_is_one_loop(cell: Callable[[int, int], nn.Module]) -> None:
    layer, x = cell(6, 5), numbers(3, 6)
    captured = fused(capture_forward(layer, x))
    assert captured is not None
    kinds = [op.kind for op in captured.graph.ops]
    assert kinds.count(KIND) == 1
    assert not {"sigmoid_", "tanh_", "mul_"}.intersection(kinds)
    with torch.no_grad():
        torch.testing.assert_close(captured.run(x), layer(x))


def a_view_made_before(x: Tensor) -> Tensor:
    values = x * 2
    view = values.t()
    values.sigmoid_().neg_()
    return view * 3 + values


def the_whole_of_a_part(x: Tensor) -> Tensor:
    values = x * 2
    values.chunk(2, 1)[0].sigmoid_().neg_()
    return values + 1


def parts_that_overlap(x: Tensor) -> Tensor:
    values = x * 2
    values[:, :4].exp_().neg_()
    return values[:, 2:] * 3


def elements_around(x: Tensor) -> Tensor:
    values = x * 2
    part = values.chunk(2, 1)[0].exp_().neg_()
    return part.as_strided((6, 6), (6, 1), 0) * 2


def both_are_results(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x * 2
    return values.t(), values.sigmoid_().neg_()


def the_callers(x: Tensor) -> Tensor:
    return x.sigmoid_().neg_() + 1


@pytest.mark.parametrize(
    "function",
    [a_view_made_before, the_whole_of_a_part, parts_that_overlap, elements_around, both_are_results, the_callers],
)
def test_what_others_read_is_written_in_place(function: Callable[[Tensor], Tensor]) -> None:
    given, mine = numbers(6, 6), numbers(6, 6)
    captured = capture_forward(function, numbers(6, 6))
    assert not may_be_out_of_place(captured)
    torch.testing.assert_close((fused(captured) or captured).run(mine), function(given))
    assert mine.equal(given) or function is the_callers
    torch.testing.assert_close(mine, given)


STEPS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    lambda x, y: x * y, lambda x, y: x @ y / 4, lambda x, y: x.t(), lambda x, y: x.unsqueeze(0).squeeze(0),
    lambda x, y: x.sigmoid_(), lambda x, y: x.mul_(y), lambda x, y: x.t().add_(y.tanh()),
    lambda x, y: x.chunk(2, 1)[1].neg_().repeat(1, 2), lambda x, y: torch.stack(x.unbind(0)[::-1]) + x[:1].mul_(0.5),
)  # fmt: skip


def a_random_program(seed: int) -> Callable[[Tensor], Tensor]:
    draws = random.Random(seed)
    steps = [(draws.choice(STEPS), draws.randrange(9), draws.randrange(9)) for _ in range(9)]
    read = draws.sample(range(9), 3)

    def function(x: Tensor) -> Tensor:
        values = [x * 2, x @ x]
        for step, one, other in steps:
            values.append(step(values[-1 - one % len(values)], values[-1 - other % len(values)]))
        return sum((values[-1 - i] for i in read), values[-1])

    return function


def test_random_programs_that_write_in_place_give_the_same(machine: Machine) -> None:
    x, programs = numbers(4, 4), []
    for function in map(a_random_program, range(24)):
        with suppress(RuntimeError):  # a product in place with a view of itself
            programs.append((function(x), capture_forward(function, x)))
    assert sum(bool(may_be_out_of_place(captured)) for _, captured in programs) > 8
    library.compiled([loop for _, captured in programs for loop in loops_of(captured)])  # all in one go
    for seed, (wanted, captured) in enumerate(programs):
        if (found := fused(captured)) is not None:
            plan = make_random_plan(found.graph, tuple(core.id for core in machine.cores), seed=seed)
            with closing(Engine(found, plan, machine)) as engine:
                torch.testing.assert_close(engine.run(found.bind(x)), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
