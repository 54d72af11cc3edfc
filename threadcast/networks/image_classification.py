"""What the image networks share: their example data, and the convolution that most of them are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.core.errors import InvalidInput
from threadcast.networks.workload import Parts


def classification(model: nn.Module, *, batch: int, side: int, classes: int, channels: int = 3) -> Parts:
    """`model` with normal noise (batch, channels, side, side) as inputs, random labels, and cross entropy as loss."""
    return model, (torch.randn(batch, channels, side, side),), torch.randint(classes, (batch,)), F.cross_entropy


def require_side(side: int, *, at_least: int, network: str) -> None:
    """Raise InvalidInput where the image would shrink to nothing inside the network."""
    if side < at_least:
        raise InvalidInput(f"side={side} is too small for {network}; give at least {at_least} pixels")


class ConvNorm(nn.Sequential):
    """Convolution without bias, batch normalisation, ReLU; keeps the image's side where `padding` is None."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], *, stride: int = 1, padding: int | None = None
    ) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        border = (height // 2, width // 2) if padding is None else (padding, padding)
        super().__init__(
            nn.Conv2d(inputs, outputs, (height, width), stride=stride, padding=border, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3),
            nn.ReLU(),
        )


class Branches(nn.ModuleList):
    """Modules that run side by side on the same input; their outputs are joined along the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], dim=1)


def init_he(module: nn.Module) -> None:
    """Draw the weights of every convolution anew, for layers that ReLU follows.

    Source: He et al. 2015, "Delving Deep into Rectifiers", 2.2, in the backward form (fan out).
    """
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
