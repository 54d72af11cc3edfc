"""Calls that read numbers out of their tensors have eager's results for all numbers, whichever graphs there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from threadcast import optimize
from threadcast.runtime.calls.table import MOST_NUMBERS, OTHER_NUMBERS


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("shift", torch.tensor(1.0))

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        y = self.linear(x)[: length.item()]
        return y.relu() + self.shift.item() if length > 3 else y - self.shift.item()


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_calls_with_other_numbers_get_graphs_of_their_own_or_run_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model = Model().eval()
    fast = optimize(model, backends=False)
    generator = torch.Generator().manual_seed(0)

    def check(number: int) -> None:
        x = torch.randn(8, 64, generator=generator)
        with torch.no_grad():
            expected = model(x, torch.tensor(number))
        found = fast(x, torch.tensor(number))
        torch.testing.assert_close(found, expected)

    try:
        for number in (2, 2, 2, 5, 5, 2, 5, 5, 7, 7, 7, 2, 2, 1, 1, 4, 2, 5):
            check(number)
        assert len(fast._optimized._table.tunings) == MOST_NUMBERS
        assert OTHER_NUMBERS in str(fast._optimized.prepare((torch.ones(8, 64), torch.tensor(6)), {}))
        for _ in range(5):
            model.shift.data.add_(1)  # type: ignore[operator]
            check(2)
            check(5)
    finally:
        fast.close()


class Neighbours(nn.Module):
    """Adds up what neighbours have, without edges from a node to itself; how many there are is another size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[:, edges[0] != edges[1]]
        return torch.zeros_like(x).index_add_(0, target, self.linear(x)[source]).relu()


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_calls_whose_masks_select_others_are_right_whatever_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model = Neighbours().eval()
    fast = optimize(model, backends=False)
    generator = torch.Generator().manual_seed(0)
    selected = set()
    try:
        for number in (0, 0, 0, 0, 3, 3, 3, 0, 7, 7, 7, 3, 1, 1, 9, 0, 3, 20):
            x, edges = torch.randn(8, 16, generator=generator), torch.randint(0, 8, (2, 20), generator=generator)
            edges[1] = (edges[0] + 1) % 8
            edges[1, torch.randperm(20, generator=generator)[:number]] = 8  # loops, of nodes in another order each time
            edges[1] = torch.where(edges[1] == 8, edges[0], edges[1])
            with torch.no_grad():
                expected = model(x, edges)
            torch.testing.assert_close(fast(x, edges), expected)
            selected.add(int((edges[0] != edges[1]).sum()))
        assert len(selected) > MOST_NUMBERS == len(fast._optimized._table.tunings)
    finally:
        fast.close()
