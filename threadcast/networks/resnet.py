"""ResNet-18 and ResNet-50.

Source: He et al. 2016, "Deep Residual Learning for Image Recognition", table 1; the stride of a reducing
bottleneck block lies in its 3 x 3 convolution, as in the common later form. Size `paper` of both: CIFAR-10's 32
pixels and 10 classes, batch 64, as Liu et al. (IV-A) train ResNet-50; they do not give its stem, which is here one
3 x 3 convolution without pooling, as is usual at that side. Size `large` is the ImageNet form, as TurboDL trains it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.networks.image_classification import classification, init_he, require_side
from threadcast.networks.workload import Parts


def _conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """ReLU(body(x) + shortcut(x)); the shortcut is a 1 x 1 convolution where the shape changes."""

    def __init__(self, body: nn.Module, *, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _conv(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class BasicBlock(Residual):
    """Two 3 x 3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        body = nn.Sequential(_conv(inputs, width, 3, stride=stride), nn.ReLU(), _conv(width, width, 3))
        super().__init__(body, inputs=inputs, outputs=width, stride=stride)


class Bottleneck(Residual):
    """1 x 1, 3 x 3 and 1 x 1 convolutions; the last has four times the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        outputs = self.expansion * width
        body = nn.Sequential(
            _conv(inputs, width, 1), nn.ReLU(),
            _conv(width, width, 3, stride=stride), nn.ReLU(),
            _conv(width, outputs, 1),
        )  # fmt: skip
        super().__init__(body, inputs=inputs, outputs=outputs, stride=stride)


class ResNet(nn.Module):
    """(batch, 3, side, side) -> (batch, classes).

    `blocks` is the number of blocks in each of the four stages, `width` that of the first stage in channels.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, int, int, int],
        *,
        classes: int = 1000,
        width: int = 64,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        if small_images:
            stem = [_conv(3, width, 3), nn.ReLU()]
        else:
            stem = [_conv(3, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        layers: list[nn.Module] = []
        channels = width
        for stage, repeats in enumerate(blocks):
            for position in range(repeats):
                stride = 2 if stage > 0 and position == 0 else 1
                layers.append(block(channels, width * 2**stage, stride=stride))
                channels = width * 2**stage * block.expansion
        self.features = nn.Sequential(*stem, *layers)
        self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        init_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.features(x))
        return x


def resnet18(
    *,
    batch: int,
    side: int,
    classes: int = 1000,
    width: int = 64,
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2),
    small_images: bool = False,
) -> Parts:
    """ResNet-18 over images of `side` pixels; `small_images` leaves out the stem's stride and pooling."""
    require_side(side, at_least=16, network="resnet18")
    model = ResNet(BasicBlock, blocks, classes=classes, width=width, small_images=small_images)
    return classification(model, batch=batch, side=side, classes=classes)


def resnet50(
    *,
    batch: int,
    side: int,
    classes: int = 1000,
    width: int = 64,
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
    small_images: bool = False,
) -> Parts:
    """ResNet-50 over images of `side` pixels; `small_images` leaves out the stem's stride and pooling."""
    require_side(side, at_least=16, network="resnet50")
    model = ResNet(Bottleneck, blocks, classes=classes, width=width, small_images=small_images)
    return classification(model, batch=batch, side=side, classes=classes)
