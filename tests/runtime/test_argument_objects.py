"""What calls do with their arguments besides computing is done by optimised calls too."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threadcast

pytestmark = pytest.mark.usefixtures("one_thread", "plans_win")


def keeps(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    doubled = x * 2
    state["last"] = doubled
    return doubled.sum(1)


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_what_a_call_puts_into_a_dictionary_is_there_for_the_caller() -> None:
    with closing(threadcast.optimize(keeps, backends=False)) as call:
        for n in range(9):
            x, state = torch.full((3, 3), float(n)), {"last": torch.zeros(3, 3)}
            torch.testing.assert_close(call(x, state), x.sum(1) * 2)
            torch.testing.assert_close(state["last"], x * 2)
        assert "among the arguments is changed" in call.reports[0].reason


def scaled(x: Tensor) -> Tensor:
    return x * 2 * getattr(x, "scale", 1.0)


def test_attributes_of_tensors_among_the_arguments_are_seen() -> None:
    with closing(threadcast.optimize(scaled, backends=False)) as call:
        plain = torch.ones(3)
        assert [call(plain).tolist() for _ in range(3)] == [[2.0] * 3] * 3
        for n in range(1, 4):
            x = torch.ones(3)
            x.scale = float(n)  # type: ignore[attr-defined]
            with nullcontext() if n > 1 else pytest.warns(UserWarning, match="an argument has attributes"):
                assert call(x).tolist() == [2.0 * n] * 3
        assert call(plain).tolist() == [2.0] * 3
        assert call.reports[0].reason == ""


def test_sizes_of_arguments_may_be_marked_for_torch_compile() -> None:
    marks: tuple[Any, ...] = torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.mark_static
    with closing(threadcast.optimize(scaled, backends=False)) as call:
        for mark in marks:
            mark(x := torch.ones(3), 0)
            assert call(x).tolist() == [2.0] * 3
        assert call.reports[0].reason == ""


def asks(a: Tensor, b: Tensor) -> Tensor:
    return a * 2 if a is b else a + b * 3


def test_code_may_ask_whether_two_arguments_are_one_tensor() -> None:
    with closing(threadcast.optimize(asks, backends=False)) as call:
        for _ in range(4):
            x, y = torch.ones(3), torch.full((3,), 5.0)
            assert call(x, x.view_as(x)).tolist() == [4.0] * 3
            assert call(x, x).tolist() == [2.0] * 3
            assert call(x, y).tolist() == [16.0] * 3
        assert [report.reason for report in call.reports] == ["", "", ""]


def test_one_tensor_given_twice_in_many_sizes_has_graphs() -> None:
    with closing(threadcast.optimize(asks, backends=False)) as call:
        for size in 3 * (2, 3, 4):
            x = torch.ones(size)
            assert call(x, x).tolist() == [2.0] * size
            assert call(x, x.clone()).tolist() == [4.0] * size


def test_a_step_may_ask_whether_input_and_target_are_one_tensor(one_thread: None) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3).double()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            result: Tensor = self.layer(asks(a, b))
            return result

    torch.manual_seed(0)
    mine, eager = Asking(), Asking()
    eager.load_state_dict(mine.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager)]
    with closing(threadcast.optimize_training(mine, loss, optimizers[0], cores=1)) as step:
        for n in range(8):
            x = torch.randn(4, 3, dtype=torch.float64)
            other = x if n % 2 else x.view_as(x)
            found = step(x, other, x)
            optimizers[1].zero_grad()
            wanted = loss(eager(x, other), x)
            wanted.backward()  # type: ignore[no-untyped-call]
            optimizers[1].step()
            torch.testing.assert_close(found, wanted.detach())
        assert [report.reason for report in step.reports] == ["", ""]


def test_an_empty_tensor_given_twice_is_one() -> None:
    def call_of(a: Tensor, b: Tensor) -> Tensor:
        return torch.ones(3) * (2 if a is b else 3) + a.sum() + b.sum()

    with closing(threadcast.optimize(call_of, backends=False)) as call:
        for _ in range(6):
            empty, other = torch.ones(0), torch.ones(0)
            assert call(empty, other).tolist() == [3.0] * 3
            assert call(empty, empty).tolist() == [2.0] * 3
        assert [report.reason for report in call.reports] == ["", ""]
