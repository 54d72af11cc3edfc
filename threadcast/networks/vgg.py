"""VGG-16.

Source: Simonyan and Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
configuration D. Size `paper`: 224 pixels, 1000 classes; TurboDL varies the batch, 32 here.
"""

from __future__ import annotations

from torch import Tensor, nn

from threadcast.networks.image_classification import classification, init_he, require_side
from threadcast.networks.workload import Parts

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """(batch, 3, side, side) -> (batch, classes); `width` scales every layer but the last."""

    def __init__(self, *, side: int = 224, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
            for units in stage:
                outputs = round(units * width)
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.ReLU()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        pooled = side // 2 ** len(STAGES)
        hidden = round(4096 * width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * pooled * pooled, hidden), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )  # fmt: skip
        init_he(self.features)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.classifier(x.flatten(1))
        return x


def vgg16(*, batch: int, side: int, classes: int = 1000, width: float = 1.0) -> Parts:
    """VGG-16 over images of `side` pixels; `width` scales its channels."""
    require_side(side, at_least=32, network="vgg16")
    model = VGG16(side=side, classes=classes, width=width)
    return classification(model, batch=batch, side=side, classes=classes)
