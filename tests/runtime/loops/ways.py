"""A loop that trains and looks at its model between steps, run in eager PyTorch and in each way of threadcast."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import threadcast
from tests.runtime.loops.reference import STEPS, EagerStep, batch, seed, tensors
from threadcast.runtime.tuner.tuning import Tuning

Way = Literal["eager", "optimize_training", "optimize", "torch.compile"]
WAYS: tuple[Way, ...] = ("optimize_training", "optimize", "torch.compile")
LAST = 10
"""Last calls of tuned functions: two steps of the loop that has the most in one. Of each function that is among them,
a plan must have run the last one."""


class Run:
    """What a loop calls: steps, looks and plain calls of its models, by one way.

    - *optimize_training*: steps are optimised, looks are eager PyTorch's;
    - *optimize*: looks are optimised, steps are eager PyTorch's;
    - *torch.compile*: both call the compiled model.
    """

    def __init__(self, way: Way, end: ExitStack) -> None:
        self.way, self._end = way, end
        self._looks: dict[nn.Module, Callable[..., Any]] = {}
        self._compiled: dict[nn.Module, Any] = {}
        self.found: list[Any] = []
        """What the loop has seen: losses, and results of looks."""

    def step(
        self, model: nn.Module, loss: Callable[[Any, Any], Tensor] | None, optimizer: Optimizer, **options: Any
    ) -> Any:
        """What does a step of training."""
        if self.way == "optimize_training":
            return self._end.enter_context(closing(threadcast.optimize_training(model, loss, optimizer, **options)))
        return EagerStep(self.called(model), loss, optimizer, **options)

    def called(self, model: nn.Module) -> Any:
        """What a loop calls in the place of `model`, where it differentiates on its own."""
        if self.way != "torch.compile":
            return model
        if model not in self._compiled:
            self._compiled[model] = torch.compile(model, backend="threadcast")
        return self._compiled[model]

    def look(self, model: nn.Module, *given: Any) -> None:
        """Evaluate the model on `given`, and note the result."""
        if self.way == "optimize" and model not in self._looks:
            self._looks[model] = self._end.enter_context(closing(threadcast.optimize(model, backends=False)))
        training = [module for module in model.modules() if module.training]
        model.eval()
        with torch.no_grad():
            self.found.append(self._looks.get(model, self.called(model))(*given))
        for module in training:
            module.training = True

    def train(self, step: Any, model: nn.Module, first: int = 0, steps: int = STEPS) -> None:
        """Train on batches from `first` on, and look at the model after each step."""
        for number in range(first, first + steps):
            self.found.append(step(*batch(number)))
            self.look(model, batch(1_000 + number)[0])


Loop = Callable[[Run], Any]
"""Returns modules, optimizers and tensors, nested, that the ways must agree in beside what `Run` has seen."""


def agrees_with_eager(
    loop: Loop, way: Way, monkeypatch: pytest.MonkeyPatch, *, refused: str | None = None, within: float = 1e-8
) -> None:
    """Run `loop` by `way` and in eager PyTorch; all that it returns and has seen is equal up to `within`.

    `refused` matches the warning where PyTorch runs what the loop does. Otherwise plans run the last calls (`LAST`).
    """
    wanted = _results(loop, "eager")
    by_plan: list[tuple[Tuning, bool]] = []
    plain = Tuning.__call__

    def noted(self: Tuning, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        by_plan.append((self, self.ran is not None))
        return result

    monkeypatch.setattr(Tuning, "__call__", noted)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = _results(loop, way)
    texts = [str(warning.message) for warning in said if "threadcast" in str(warning.message)]
    if refused is None:
        assert not texts
        assert by_plan
        last = dict(by_plan[-LAST:])
        assert all(last.values()), [tuning.captured.graph.ids for tuning, planned in last.items() if not planned]
    else:
        assert any(refused in text for text in texts), texts
    assert len(found) == len(wanted)
    for number, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(
            mine, theirs, rtol=within, atol=within, equal_nan=True, msg=lambda text, n=number: f"tensor {n}: {text}"
        )


def _results(loop: Loop, way: Way) -> list[Tensor]:
    seed()
    with ExitStack() as end:
        run = Run(way, end)
        returned = loop(run)
        return [*tensors(run.found), *tensors(returned)]
