"""Runs a recipe for another trainer by threadcast and by eager PyTorch: `python -m tests.recipe_process FILE`.

Prints one line of JSON: the numbers that the recipe prints in each way, and how many graphs ran by plans. Plans are
made at once and win, as in the tests of `runtime`; what is compared with nothing is how fast they are.
"""

from __future__ import annotations

import json
import math
import random
import runpy
import sys
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import threadcast
from tests.runtime.conftest import PlansWin, SequentialPlanner
from tests.runtime.loops.reference import EagerStep
from tests.whole_calls import by_the_graphs
from threadcast.runtime.compile_backend import backend
from threadcast.runtime.tuning import machine, plan_maker, plan_search, warm_up
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.whole_calls import WholeCalls


def printed(recipe: str) -> list[float]:
    """Run a recipe; return the numbers that it prints."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    numbers: list[float] = []
    runpy.run_path(recipe, init_globals={"print": lambda *values: numbers.extend(map(float, values))})
    return numbers


def by_eager_pytorch(recipe: str) -> list[float]:
    """Run a recipe whose steps and models are left as they are."""
    with (
        patch.object(threadcast, "optimize_training", EagerStep),
        patch.object(torch, "compile", lambda module, **_: module),
        patch.object(torch.nn.Module, "compile", lambda *_, **__: None),
    ):
        return printed(recipe)


def by_plans(recipe: str) -> tuple[list[float], int]:
    """Run a recipe by plans that are made at once; return its numbers, and how many graphs have run by one."""
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
    with ExitStack() as end:
        for owner, name, value in (
            (warm_up, "are_steady", lambda _: True),
            (plan_maker, "ForecastingPlanner", SequentialPlanner),
            (plan_search, "HOPELESS", math.inf),
            (plan_search, "SLOWER", math.inf),
            (machine, "Contest", PlansWin),
            (WholeCalls, "next_turn", by_the_graphs),
            (Tuning, "__call__", noted),
        ):
            end.enter_context(patch.object(owner, name, value))
        return printed(recipe), len(planned)


if __name__ == "__main__":
    torch.set_num_threads(1)
    eager = by_eager_pytorch(sys.argv[1])
    mine, graphs = by_plans(sys.argv[1])
    sys.stdout.write(json.dumps({"eager": eager, "mine": mine, "graphs": graphs}) + "\n")
