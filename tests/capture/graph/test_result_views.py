"""Results that lie in the memory of an argument or of another result are views to autograd, as in eager PyTorch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from threadcast.capture.graph.capture import capture_forward


def test_views_among_the_results_notice_writes_as_in_eager_pytorch() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return x[0], y, y.view(-1), (2 * x).split(1)[1], x.unbind(1)[0]

    weight = torch.ones(3, requires_grad=True)
    for call in (function, capture_forward(function, torch.ones(2, 3)).run):
        x = torch.arange(6.0).view(2, 3).clone()
        row, y, flat, half, column = call(x)
        products = [(weight * row).sum(), (weight * flat[:3]).sum(), (weight * half).sum()]
        x.add_(1)
        y.add_(1)
        assert row._base is x
        assert column._version == x._version
        assert torch.equal(row, x[0])
        for product, written in zip(products, (True, True, False), strict=True):
            with pytest.raises(RuntimeError, match="inplace operation") if written else nullcontext():
                product.backward()


def test_results_that_see_an_argument_otherwise_stay_as_they_are() -> None:
    def function(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        return x.view(torch.int32), x[1:].exp(), z.conj(), z.imag, z.conj().imag, torch.view_as_real(z)

    x, z = torch.arange(4.0), torch.arange(3.0) * (1 + 2j)
    captured = capture_forward(function, x, z)
    for one, wanted in zip(captured.run(x, z), function(x, z), strict=True):
        assert torch.equal(one, wanted)
