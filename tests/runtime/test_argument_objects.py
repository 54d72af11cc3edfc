"""What calls do with their arguments besides computing is done by optimised calls too."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import Tensor

import threadcast

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")


def keeps(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    doubled = x * 2
    state["last"] = doubled
    return doubled.sum(1)


@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_what_a_call_puts_into_a_dictionary_is_there_for_the_caller() -> None:
    with closing(threadcast.optimize(keeps, backends=False)) as call:
        for n in range(4):
            x, state = torch.full((3, 3), float(n)), {"last": torch.zeros(3, 3)}
            torch.testing.assert_close(call(x, state), x.sum(1) * 2)
            torch.testing.assert_close(state["last"], x * 2)
        assert "among the arguments is changed" in call.reports[0].reason
