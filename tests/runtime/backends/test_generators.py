"""Making and comparing backends leaves the caller's random generators as they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.small_training import run_until_settled
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends import contenders as making
from threadcast.runtime.backends.contenders import contenders
from threadcast.runtime.backends.frozen import FlatModule
from threadcast.runtime.backends.screening import Screening
from threadcast.runtime.backends.ways import Way


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


def draw_all() -> None:
    torch.rand(3)
    random.random()
    np.random.rand(3)


def test_generators_are_as_they_were_whatever_makes_and_checks_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    module = nn.Linear(3, 2).eval()

    def screened(flat: FlatModule, cores: int, file: Path, among: Sequence[str]) -> Screening:
        draw_all()
        made.append("screened")
        return Screening([Way("a backend", "")])

    def make() -> Any:
        draw_all()
        made.append("made")

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            draw_all()
            made.append("checked")
            with torch.no_grad():
                return [module(*tensors)]

        return run

    monkeypatch.setattr(making, "screened", screened)
    monkeypatch.setattr(making, "ways", lambda flat, cores, file: [(Way("a backend", ""), make)])
    before = states()
    (contender,) = contenders(module, ((torch.ones(4, 3),), {}), 1)
    assert (contender.name, made) == ("a backend", ["screened", "made", "checked"])
    assert states() == before


def test_a_module_that_draws_random_numbers_has_no_backends() -> None:
    module = Dropping().eval()
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((torch.ones(4, 3),), {})
    with pytest.raises(CaptureError, match="draws random numbers"):
        FlatModule(module, arguments)
    before = states()
    assert not list(contenders(module, arguments, 1))
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
