"""Making and comparing backends leaves the caller's random generators as they are."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.small_training import run_until_settled
from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends.search import BackendSearch


class Dropping(nn.Module):
    """Draws random numbers in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(nn.functional.dropout(self.first(x), 0.3))
        return result


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]


def test_a_module_that_draws_random_numbers_has_no_backends() -> None:
    module = Dropping().eval()
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((torch.ones(4, 3),), {})
    before = states()
    captured = capture_forward(lambda args, kwargs: module(*args, **kwargs), *arguments)
    search = BackendSearch(module, arguments, captured, 1, result=torch.ones(4, 3))
    search.start()
    assert search.over
    assert states() == before


@pytest.mark.usefixtures("planned_at_once", "one_thread")
def test_random_numbers_are_eager_ones_before_and_after_backends_are_asked_for() -> None:
    module = Dropping().eval()
    with closing(threadcast.optimize(module, cores=1)) as call, torch.no_grad():

        def check(number: int) -> None:
            x = torch.full((4, 3), number % 5 - 2.0)
            start = torch.get_rng_state()
            found, after = call(x), torch.get_rng_state()
            torch.set_rng_state(start)
            torch.testing.assert_close(found, module(x))
            assert torch.equal(torch.get_rng_state(), after)

        torch.manual_seed(0)
        run_until_settled(call, check)
