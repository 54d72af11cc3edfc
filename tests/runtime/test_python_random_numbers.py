"""Random numbers of Python and NumPy are those of PyTorch's own calls, before and after a capture is tried."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast


class Scaled(nn.Module):
    """A layer whose result is scaled by a random number."""

    def __init__(self, draw: Callable[[], float] | random.Random) -> None:
        super().__init__()
        self.layer, self.source = nn.Linear(4, 4), draw

    def forward(self, x: Tensor) -> Tensor:
        draw = self.source.random if isinstance(self.source, random.Random) else self.source
        return self.layer(x) * draw()


def results(call: Callable[[Tensor], Tensor]) -> list[Tensor]:
    random.seed(0)
    np.random.seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [call(torch.ones(2, 4)) for _ in range(8)]


@pytest.mark.parametrize("draw", [random.random, lambda: float(np.random.rand())], ids=["random", "numpy"])
def test_a_capture_that_is_tried_draws_nothing_of_the_callers(draw: Callable[[], float]) -> None:
    model = Scaled(draw)
    wanted = results(model)
    with closing(threadcast.optimize(model, backends=False)) as call:
        for given, expected in zip(results(call), wanted, strict=True):
            torch.testing.assert_close(given, expected)
        assert call.reports[0].runs == "default"


def test_a_model_with_a_generator_of_its_own_runs_as_pytorch() -> None:

    model = Scaled(random.Random(3))
    expected_model = Scaled(random.Random(3))
    expected_model.load_state_dict(model.state_dict())
    wanted = results(expected_model)
    with closing(threadcast.optimize(model, backends=False)) as call:
        for given, expected in zip(results(call), wanted, strict=True):
            torch.testing.assert_close(given, expected)
