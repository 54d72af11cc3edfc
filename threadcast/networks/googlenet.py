"""GoogLeNet (Inception v1) without auxiliary heads, and a chain of two of its inception blocks.

Source: Szegedy et al. 2015, "Going Deeper with Convolutions", table 1, in the form of TensorFlow's slim library
that Graphi measures: batch normalisation in place of local response normalisation, and 3 x 3 in place of 5 x 5
in the third branch (6.62 million parameters). Graphi (7.1, table 1c) varies the image side and multiplies every
convolution's outputs by a width factor. Size `paper`: 224 pixels, 1000 classes; TurboDL varies the batch, 32 here.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from torch import Tensor, nn

from threadcast.networks.image_classification import Branches, ConvNorm, classification, init_he, require_side
from threadcast.networks.workload import Parts


@dataclass(frozen=True, slots=True)
class BlockWidths:
    """Output channels of an inception block's convolutions, named as in the paper's table 1."""

    conv1: int
    reduce3: int
    conv3: int
    reduce5: int
    conv5: int
    pool: int

    def scaled(self, factor: float) -> BlockWidths:
        """The widths times `factor`, each at least 1."""
        return BlockWidths(*(max(1, round(channels * factor)) for channels in astuple(self)))

    @property
    def outputs(self) -> int:
        """Output channels of the whole block."""
        return self.conv1 + self.conv3 + self.conv5 + self.pool


STAGES = (
    (BlockWidths(64, 96, 128, 16, 32, 32), BlockWidths(128, 128, 192, 32, 96, 64)),
    (
        BlockWidths(192, 96, 208, 16, 48, 64),
        BlockWidths(160, 112, 224, 24, 64, 64),
        BlockWidths(128, 128, 256, 24, 64, 64),
        BlockWidths(112, 144, 288, 32, 64, 64),
        BlockWidths(256, 160, 320, 32, 128, 128),
    ),
    (BlockWidths(256, 160, 320, 32, 128, 128), BlockWidths(384, 192, 384, 48, 128, 128)),
)
"""Blocks 3a-3b, 4a-4e and 5a-5b; a max pooling of stride 2 lies between the stages."""


class InceptionBlock(Branches):
    """(batch, inputs, side, side) -> (batch, widths.outputs, side, side)."""

    def __init__(self, inputs: int, widths: BlockWidths) -> None:
        super().__init__(
            [
                ConvNorm(inputs, widths.conv1, 1),
                nn.Sequential(ConvNorm(inputs, widths.reduce3, 1), ConvNorm(widths.reduce3, widths.conv3, 3)),
                nn.Sequential(ConvNorm(inputs, widths.reduce5, 1), ConvNorm(widths.reduce5, widths.conv5, 3)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvNorm(inputs, widths.pool, 1)),
            ]
        )


class GoogLeNet(nn.Module):
    """(batch, 3, side, side) -> (batch, classes).

    `width` multiplies the outputs of every convolution; `depth` keeps that many blocks of each stage at most.
    """

    def __init__(self, *, classes: int = 1000, width: float = 1.0, depth: int | None = None) -> None:
        super().__init__()
        narrow, channels = round(64 * width), round(192 * width)
        layers: list[nn.Module] = [
            ConvNorm(3, narrow, 7, stride=2),
            nn.MaxPool2d(3, stride=2, ceil_mode=True),
            ConvNorm(narrow, narrow, 1),
            ConvNorm(narrow, channels, 3),
        ]
        for stage in STAGES:
            layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
            for widths in stage[:depth]:
                block = widths.scaled(width)
                layers.append(InceptionBlock(channels, block))
                channels = block.outputs
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(channels, classes)
        )
        init_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.features(x))
        return x


class TwoInceptionBlocks(nn.Module):
    """Blocks 3a and 3b, global average pooling, a classifier: (batch, 192 * width, side, side) -> (batch, 10)."""

    def __init__(self, *, width: float = 1.0) -> None:
        super().__init__()
        first, second = (widths.scaled(width) for widths in STAGES[0])
        self.inputs = round(192 * width)
        self.blocks = nn.Sequential(InceptionBlock(self.inputs, first), InceptionBlock(first.outputs, second))
        self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(second.outputs, 10))
        init_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.blocks(x))
        return x


def googlenet(*, batch: int, side: int, width: float = 1.0, classes: int = 1000, depth: int | None = None) -> Parts:
    """GoogLeNet over images of `side` pixels; `depth` keeps that many blocks of each kind at most."""
    require_side(side, at_least=33, network="googlenet")
    model = GoogLeNet(classes=classes, width=width, depth=depth)
    return classification(model, batch=batch, side=side, classes=classes)


def inception_block(*, batch: int, side: int, width: float = 1.0) -> Parts:
    """Blocks 3a and 3b alone, over feature maps of `side` pixels; `width` scales their channels."""
    require_side(side, at_least=2, network="inception_block")
    model = TwoInceptionBlocks(width=width)
    return classification(model, batch=batch, side=side, classes=10, channels=model.inputs)
