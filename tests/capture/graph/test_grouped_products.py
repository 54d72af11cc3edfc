"""Mixtures of experts, which multiply by `_grouped_mm`, are captured in all types and for all ways of their tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.capture.eager_training import train
from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.fake_results import grouped_product

aten = torch.ops.aten

ENDS = torch.tensor([3, 3, 8], dtype=torch.int32)


CASES = {
    "tokens": ((8, 16), (3, 16, 8), ENDS), "tokens, rows that are filled up": ((8, 16), (3, 5, 16, -1), ENDS),
    "weights": ((16, 8), (8, 16), ENDS), "weights, rows that are filled up": ((16, 8), (5, 8, -1), ENDS),
    "all in groups": ((3, 4, 16), (3, 5, 16, -1), None), "groups of columns": ((3, 4, 16), (16, 8), ENDS),
}  # fmt: skip
"""Shapes, of which -1 at the end says that the matrices are turned, and where groups end."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_fake_results_are_like_real_ones(name: str, dtype: torch.dtype) -> None:
    first, second, ends = CASES[name]
    a = torch.randn(first, dtype=dtype)
    b = torch.randn(second[:-1], dtype=dtype).mT if second[-1] < 0 else torch.randn(second, dtype=dtype)
    wanted = aten._grouped_mm.default(a, b, ends)
    with FakeTensorMode() as mode:
        found = grouped_product(*(None if x is None else mode.from_tensor(x) for x in (a, b, ends)))
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)


class Experts(nn.Module):
    """Sends tokens through the experts that they are sorted by."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.linspace(-1, 1, 3 * 16 * 32).view(3, 16, 32))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.up, offs=ends).relu()


def test_experts_are_trained_as_in_pytorch() -> None:
    one, other = Experts(), Experts()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    x, target = torch.randn(8, 16), torch.randn(8, 32)
    captured = capture_training(one, nn.functional.mse_loss, optimizers[0], (x, ENDS), target)
    for ends in (ENDS, ENDS + 0, torch.tensor([1, 5, 8], dtype=torch.int32)):
        captured.run((x, ends), target)
        train(other, optimizers[1], lambda model, ends=ends: nn.functional.mse_loss(model(x, ends), target))
    torch.testing.assert_close(one.up, other.up)
