"""Runs a recipe for another trainer by threadcast and by eager PyTorch: `python -m tests.recipe_process FILE`.

Prints one line of JSON: the numbers that the recipe prints in each way, how many graphs ran by plans, and how far apart
what the recipe trains is, as a share of how far training moved it, of each optimizer. How fast plans are is compared
with nothing.
"""

from __future__ import annotations

import json
import random
import runpy
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

import threadcast
from tests.plans_at_once import plans_at_once
from tests.runtime.loops.reference import EagerStep
from threadcast.runtime.doors.compile_backend import backend
from threadcast.runtime.tuner.tuning import Tuning

Trained = list[list[Tensor]]
"""For each optimizer, in the order in which they were made, how far each of its parameters has moved."""


def printed(recipe: str) -> tuple[list[float], Trained]:
    """Run a recipe; return the numbers that it prints, and how it has trained."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    numbers: list[float] = []
    begun: list[tuple[list[Tensor], list[Tensor]]] = []
    plain = Optimizer.__init__

    def noted(self: Optimizer, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        parameters = [one for group in self.param_groups for one in group["params"]]
        begun.append((parameters, [one.detach().clone() for one in parameters]))

    with patch.object(Optimizer, "__init__", noted):
        runpy.run_path(recipe, init_globals={"print": lambda *values: numbers.extend(map(float, values))})
    return numbers, [[now.detach() - was for now, was in zip(*one, strict=True)] for one in begun]


def apart(mine: Trained, eager: Trained) -> list[float]:
    """For each of eager's optimizers, how far apart its parameters are, as a share of how far they have moved."""
    shares = []
    for wanted in eager:
        shapes = [one.shape for one in wanted]
        found = mine.pop(next(i for i, one in enumerate(mine) if [each.shape for each in one] == shapes))
        moved = sum(float(one.square().sum()) for one in wanted)
        differ = sum(float((one - other).square().sum()) for one, other in zip(found, wanted, strict=True))
        shares.append((differ / moved) ** 0.5)
    return shares


def by_eager_pytorch(recipe: str) -> tuple[list[float], Trained]:
    """Run a recipe whose steps and models are left as they are."""
    with (
        patch.object(threadcast, "optimize_training", EagerStep),
        patch.object(torch, "compile", lambda module, **_: module),
        patch.object(torch.nn.Module, "compile", lambda *_, **__: None),
    ):
        return printed(recipe)


def by_plans(recipe: str) -> tuple[list[float], Trained, int]:
    """Run a recipe by plans; return its numbers, how it has trained, and how many graphs have run by a plan."""
    planned: set[Tuning] = set()
    plain = Tuning.__call__

    def noted(self: Tuning, *arguments: Any) -> Any:
        result = plain(self, *arguments)
        if self.ran is not None:
            planned.add(self)
        return result

    registered = torch._dynamo.backends.registry
    if "threadcast" not in registered.list_backends(exclude_tags=()):  # it is where the package is installed
        registered.register_backend(backend, name="threadcast")
    with plans_at_once(), patch.object(Tuning, "__call__", noted):
        return *printed(recipe), len(planned)


if __name__ == "__main__":
    torch.set_num_threads(1)
    eager, eagerly_trained = by_eager_pytorch(sys.argv[1])
    mine, trained, graphs = by_plans(sys.argv[1])
    found = {"eager": eager, "mine": mine, "graphs": graphs, "apart": apart(trained, eagerly_trained)}
    sys.stdout.write(json.dumps(found) + "\n")
