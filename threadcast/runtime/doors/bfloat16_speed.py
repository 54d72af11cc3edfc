"""How fast this CPU computes in bfloat16, beside float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from threadcast.threads.openmp import torch_threads

RUNS = 7
"""Runs of each operator, of which the shortest counts. A convention."""
MOST_S = 0.1
"""Seconds after which an operator is not run once more: without instructions for bfloat16 one run may take as long."""


@dataclass(frozen=True, slots=True)
class Bfloat16Speed:
    """Seconds in float32 over seconds in bfloat16 on one core: above 1 where bfloat16 is faster."""

    matrix_product: float
    convolution: float

    @property
    def may_pay(self) -> bool:
        """Whether any of both is faster in bfloat16."""
        return max(self.matrix_product, self.convolution) > 1.0


@lru_cache(maxsize=1)
def bfloat16_speed() -> Bfloat16Speed:
    """Return this CPU's, measured once in a process by a product of 512 x 512 matrices and a 3 x 3 convolution.

    Takes 0.05 s, and up to 0.5 s on CPUs where bfloat16 is slow.
    """
    matrix = torch.ones(512, 512, dtype=torch.float32)
    image = torch.ones(2, 64, 28, 28, dtype=torch.float32)
    weight = torch.ones(64, 64, 3, 3, dtype=torch.float32)
    with torch_threads(1), torch.no_grad(), torch.autocast("cpu", enabled=False):
        return Bfloat16Speed(_ratio(torch.mm, matrix, matrix), _ratio(_convolution, image, weight))


def _convolution(image: Tensor, weight: Tensor) -> Tensor:
    return torch.conv2d(image, weight, padding=1)


def _ratio(operator: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor) -> float:
    return _shortest_s(operator, one, other) / _shortest_s(operator, one.bfloat16(), other.bfloat16())


def _shortest_s(operator: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor) -> float:
    found: list[float] = []
    while len(found) <= RUNS and sum(found) < MOST_S:  # the first fills caches
        began_s = time.perf_counter()
        operator(one, other)
        found.append(time.perf_counter() - began_s)
    return min(found)
