"""Runs compiled calls until their graphs have settled, and says what runs the graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.runtime.small_training import same_state
from tests.waiting import attempts
from threadcast.runtime.doors.compile_backend import compiled_graphs


def run_until_settled(call: Callable[[int], object], *, least: int = 10) -> None:
    """`call` with 0, 1, 2 and so on until every graph knows what runs it, `least` times at least."""
    for number in attempts():
        reports = [report for graph in compiled_graphs() for report in graph.reports]
        if number >= least and reports and not any(report.measuring for report in reports):
            return
        call(number)


def runners() -> dict[str, list[str]]:
    """What runs each graph, by its role ("forward", "backward" or "inference")."""
    found: dict[str, list[str]] = {}
    for graph in compiled_graphs():
        for report in graph.reports:
            found.setdefault(graph.title.split(", ")[1], []).append(report.runs)
    return found


def trains_as_eager(
    make: Callable[[], nn.Module], loss: Callable[[Any, int], Tensor | None], *, steps: int = 0, **options: Any
) -> dict[str, list[str]]:
    """Train a compiled and an eager model until the graphs have settled, or for `steps`; compare after each step.

    `loss(model, step)` returns the loss of a step; None where it has called `backward` itself. Returns `runners()`.
    """
    mine, eager = make(), make()
    compiled = torch.compile(mine, backend="threadcast", **options)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (mine, eager)]

    def train(step: int) -> None:
        for called, optimizer in zip((compiled, eager), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            value = loss(called, step)
            if value is not None:
                value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        same_state(mine, eager)

    for step in range(steps):
        train(step)
    if not steps:
        run_until_settled(train)
    return runners()


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A maker of the same model each time."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        return make()

    return made


def perceptron() -> nn.Module:
    """Two linear layers, in double precision, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def rows(seed: int, size: int = 5) -> Tensor:
    """A batch for `perceptron`."""
    return torch.randn(size, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
