"""A call that computes several gradients is split into one for each where these are the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_training
from threadcast.capture.graph.optimizers import NoUpdate


class OneStride(nn.Conv2d):
    """One stride for all dimensions: how many there are is not said."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.convolution(x, self.weight, self.bias, [1], [1], [1], False, [0], 1)


CONVOLUTIONS: list[Callable[..., nn.Module]] = [
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
]  # fmt: skip
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    kind.__name__: (partial(kind, 4, 6, 3, padding=1, groups=2), (2, 4, *[5] * int(kind.__name__[-2])))
    for kind in CONVOLUTIONS
} | {
    "one stride": (lambda: OneStride(4, 6, 3), (2, 4, 5, 5)),
    "rows": (lambda: nn.LayerNorm(17), (2, 3, 17)), "planes": (lambda: nn.LayerNorm([4, 33]), (2, 4, 33)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_the_whole_call(name: str, dtype: torch.dtype) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make().to(dtype), torch.randn(shape, dtype=dtype)
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1], dtype=dtype), layer)

    def loss(found: Tensor, _: object) -> Tensor:
        return (found * found).sum()

    captured = capture_training(model, loss, NoUpdate(), (x,), None)
    split = sum(".weight" in one or ".input" in one or ".bias" in one for one in captured.graph.ids)
    assert split == (0 if name == "one stride" else 2 if "Conv" not in name else 3)
    wanted = torch.autograd.grad(loss(model(x), None), list(model.parameters()))
    captured.run()
    rounding = torch.finfo(dtype).eps
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        bound = (8 if rounding > 1e-4 else 32) * rounding * gradient.abs().max().item()
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=bound)
