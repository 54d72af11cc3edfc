"""How fast this CPU computes in bfloat16, beside float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from threadcast.runtime.operators.race import times_as_fast


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
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return Bfloat16Speed(_ratio(torch.mm, matrix, matrix), _ratio(_convolution, image, weight))


def _convolution(image: Tensor, weight: Tensor) -> Tensor:
    return torch.conv2d(image, weight, padding=1)


def _ratio(operator: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor) -> float:
    return times_as_fast(partial(operator, one.bfloat16(), other.bfloat16()), partial(operator, one, other))
