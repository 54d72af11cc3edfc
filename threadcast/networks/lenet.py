"""LeNet.

Source: LeCun et al. 1998, "Gradient-Based Learning Applied to Document Recognition", in the form that Caffe
ships for MNIST and TurboDL measures: max pooling, ReLU in place of sigmoid, 20 and 50 maps, 500 hidden units.
Size `paper`: MNIST's 28 x 28 pixels, Caffe's batch of 64.
"""

from __future__ import annotations

from torch import Tensor, nn

from threadcast.networks.image_classification import classification, require_side
from threadcast.networks.workload import Parts


class LeNet(nn.Module):
    """(batch, 1, side, side) -> (batch, classes)."""

    def __init__(self, *, side: int = 28, classes: int = 10, maps: tuple[int, int] = (20, 50), hidden: int = 500):
        super().__init__()
        pooled = ((side - 4) // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(1, maps[0], 5),
            nn.MaxPool2d(2),
            nn.Conv2d(maps[0], maps[1], 5),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(maps[1] * pooled * pooled, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.classifier(x.flatten(1))
        return x


def lenet(*, batch: int, side: int, maps: tuple[int, int] = (20, 50), hidden: int = 500) -> Parts:
    """LeNet over grey images of `side` pixels; `maps` are its convolutions' channels."""
    require_side(side, at_least=16, network="lenet")
    model = LeNet(side=side, maps=maps, hidden=hidden)
    return classification(model, batch=batch, side=side, classes=10, channels=1)
