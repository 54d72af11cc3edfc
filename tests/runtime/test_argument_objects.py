"""What calls do with their arguments besides computing is done by optimised calls too."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

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
