"""AlexNet and CaffeNet.

Sources: Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural Networks" (the
two-tower form: grouped convolutions and local response normalisation, 60.97 million parameters, not the
ungrouped 61.1 million of the later single-tower one); Jia et al. 2014, "Caffe", whose CaffeNet is the same
with pooling before normalisation. Size `paper`: 227 pixels, 1000 classes; TurboDL varies the batch, 32 here.
"""

from __future__ import annotations

from torch import Tensor, nn

from threadcast.networks.image_classification import classification, require_side
from threadcast.networks.workload import Parts


class AlexNet(nn.Module):
    """(batch, 3, side, side) -> (batch, classes); `width` scales every layer but the last."""

    def __init__(
        self, *, side: int = 227, classes: int = 1000, width: float = 1.0, norm_before_pool: bool = True
    ) -> None:
        super().__init__()
        c1, c2, c3, hidden = (round(units * width) for units in (96, 256, 384, 4096))

        def reduce() -> list[nn.Module]:
            # Constants of Krizhevsky et al. 3.3 as Caffe reads them: alpha is divided by the five channels.
            layers = [nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75), nn.MaxPool2d(3, stride=2)]
            return layers if norm_before_pool else layers[::-1]

        self.features = nn.Sequential(
            nn.Conv2d(3, c1, 11, stride=4), nn.ReLU(), *reduce(),
            nn.Conv2d(c1, c2, 5, padding=2, groups=2), nn.ReLU(), *reduce(),
            nn.Conv2d(c2, c3, 3, padding=1), nn.ReLU(),
            nn.Conv2d(c3, c3, 3, padding=1, groups=2), nn.ReLU(),
            nn.Conv2d(c3, c2, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
        )  # fmt: skip
        pooled = _pooled_side(side)
        self.classifier = nn.Sequential(
            nn.Linear(c2 * pooled * pooled, hidden), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.classifier(x.flatten(1))
        return x


def alexnet(*, batch: int, side: int, classes: int = 1000, width: float = 1.0) -> Parts:
    """AlexNet over images of `side` pixels; `width` scales its channels."""
    require_side(side, at_least=67, network="alexnet")
    model = AlexNet(side=side, classes=classes, width=width)
    return classification(model, batch=batch, side=side, classes=classes)


def caffenet(*, batch: int, side: int, classes: int = 1000, width: float = 1.0) -> Parts:
    """CaffeNet: AlexNet with pooling before normalisation."""
    require_side(side, at_least=67, network="caffenet")
    model = AlexNet(side=side, classes=classes, width=width, norm_before_pool=False)
    return classification(model, batch=batch, side=side, classes=classes)


def _pooled_side(side: int) -> int:
    side = (side - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side
