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
    "tokens": lambda: (torch.randn(8, 16), torch.randn(3, 16, 8), ENDS),
    "tokens, rows that are filled up": lambda: (torch.randn(8, 16), torch.randn(3, 5, 16).mT, ENDS),
    "weights": lambda: (torch.randn(16, 8), torch.randn(8, 16), ENDS),
    "weights, rows that are filled up": lambda: (torch.randn(16, 8), torch.randn(5, 8).mT, ENDS),
    "all in groups": lambda: (torch.randn(3, 4, 16), torch.randn(3, 5, 16).mT, None),
    "groups of columns": lambda: (torch.randn(3, 4, 16), torch.randn(16, 8), ENDS),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_fake_results_are_like_real_ones(name: str, dtype: torch.dtype) -> None:
    a, b, ends = CASES[name]()
    a, b = a.to(dtype), b.to(dtype)
    wanted = aten._grouped_mm.default(a, b, ends)
    with FakeTensorMode() as mode:
        found = grouped_product(*(None if x is None else mode.from_tensor(x) for x in (a, b, ends)))
    assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)


class Experts(nn.Module):
    """Sends each token through the two of four experts that its scores choose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(16, 4)
        self.up = nn.Parameter(torch.randn(4, 16, 32) / 4)
        self.down = nn.Parameter(torch.randn(4, 32, 16) / 6)

    def forward(self, x: Tensor) -> Tensor:
        chances, chosen = self.scores(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        ends = torch.histc(chosen.flatten().float(), bins=4, min=0, max=3).cumsum(0).to(torch.int32)
        sorted_tokens = x[order // 2]
        up = torch._grouped_mm(sorted_tokens, self.up, offs=ends).relu()
        down = torch._grouped_mm(up, self.down, offs=ends) * chances.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // 2, down)


def test_experts_are_trained_as_in_pytorch() -> None:
    one, other = Experts(), Experts()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (one, other)]
    generator = torch.Generator().manual_seed(2)
    captured = capture_training(one, nn.functional.mse_loss, optimizers[0], (torch.randn(12, 16),), torch.randn(12, 16))
    assert "_grouped_mm" in {op.kind for op in captured.graph.ops}
    chosen = set()
    for _ in range(3):
        x, target = (torch.randn(12, 16, generator=generator) for _ in range(2))
        found = captured.run((x,), target)
        wanted, _ = train(other, optimizers[1], lambda model, x=x, y=target: nn.functional.mse_loss(model(x), y))
        torch.testing.assert_close(found["loss"], wanted)
        chosen.add(tuple(other.scores(x).topk(2).indices.flatten().bincount(minlength=4).tolist()))
    assert len(chosen) > 1
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
