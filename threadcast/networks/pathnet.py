"""PathNet: layers of modules that run side by side.

Source: Fernando et al. 2017, "PathNet: Evolution Channels Gradient Descent in Super Neural Networks", with the
sizes of Graphi (Tang et al. 2018, 7.1, table 1b): 3 layers of 6 active modules; a module is a 3 x 3 convolution,
ReLU and 2 x 2 max pooling; the outputs of a layer's modules are summed and fed to every module of the next. Only
the active modules of one path are built: the evolution of paths is outside of a training step.
"""

from __future__ import annotations

from functools import reduce
from operator import add

from torch import Tensor, nn

from threadcast.networks.image_classification import classification, require_side
from threadcast.networks.workload import Parts


class PathModule(nn.Sequential):
    """(batch, inputs, side, side) -> (batch, width, side / 2, side / 2)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class PathLayer(nn.ModuleList):
    """`modules` modules on the same input; their outputs summed."""

    def __init__(self, inputs: int, width: int, *, modules: int) -> None:
        super().__init__(PathModule(inputs, width) for _ in range(modules))

    def forward(self, x: Tensor) -> Tensor:
        outputs: list[Tensor] = [module(x) for module in self]
        return reduce(add, outputs)


class PathNet(nn.Module):
    """(batch, 3, side, side) -> (batch, classes)."""

    def __init__(self, *, side: int, width: int, layers: int = 3, modules: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(PathLayer(3 if layer == 0 else width, width, modules=modules) for layer in range(layers))
        )
        self.classifier = nn.Linear(width * (side // 2**layers) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        x = self.classifier(x.flatten(1))
        return x


def pathnet(*, batch: int, side: int, width: int, modules: int = 6) -> Parts:
    """PathNet over images of `side` pixels: layers of `modules` modules of `width` channels each."""
    require_side(side, at_least=8, network="pathnet")
    model = PathNet(side=side, width=width, modules=modules)
    return classification(model, batch=batch, side=side, classes=10)
