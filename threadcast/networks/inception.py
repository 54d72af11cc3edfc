"""Inception-v3 without its auxiliary head.

Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", table 1 and figures 5
to 7, 10, in the channel counts of the released model (23.8 million parameters). Size `paper`: ImageNet's 299
pixels, batch 16, as Liu et al. (IV-A) train it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from threadcast.networks.image_classification import Branches, ConvNorm, classification, init_he, require_side
from threadcast.networks.workload import Parts

Kernel = int | tuple[int, int]
Scale = Callable[[int], int]


class InceptionV3(nn.Module):
    """(batch, 3, side, side) -> (batch, classes).

    `width` multiplies the outputs of every convolution; `depth` keeps that many blocks of each kind at most.
    """

    def __init__(self, *, classes: int = 1000, width: float = 1.0, depth: int | None = None) -> None:
        super().__init__()

        def w(channels: int) -> int:
            return max(1, round(channels * width))

        layers: list[nn.Module] = [
            ConvNorm(3, w(32), 3, stride=2, padding=0),
            ConvNorm(w(32), w(32), 3, padding=0),
            ConvNorm(w(32), w(64), 3),
            nn.MaxPool2d(3, stride=2),
            ConvNorm(w(64), w(80), 1),
            ConvNorm(w(80), w(192), 3, padding=0),
            nn.MaxPool2d(3, stride=2),
        ]
        channels = w(192)
        for pooled in (32, 64, 64)[:depth]:
            layers.append(_block_35(channels, w, pooled=pooled))
            channels = 2 * w(64) + w(96) + w(pooled)
        layers.append(_reduce_35(channels, w))
        channels += w(384) + w(96)
        for middle in (128, 160, 160, 192)[:depth]:
            layers.append(_block_17(channels, w, middle=middle))
            channels = 4 * w(192)
        layers.append(_reduce_17(channels, w))
        channels += w(320) + w(192)
        for _ in range(2)[:depth]:
            layers.append(_block_8(channels, w))
            channels = w(320) + 4 * w(384) + w(192)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels, classes)
        )
        init_he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.classifier(self.features(x))
        return x


def _chain(inputs: int, *layers: tuple[int, Kernel]) -> list[nn.Module]:
    """Convolutions one after the other, each given by its output channels and kernel."""
    chain: list[nn.Module] = []
    for outputs, kernel in layers:
        chain.append(ConvNorm(inputs, outputs, kernel))
        inputs = outputs
    return chain


def _pool_branch(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvNorm(inputs, outputs, 1))


def _block_35(inputs: int, w: Scale, *, pooled: int) -> Branches:
    """Figure 5, on the grid of 35 x 35."""
    return Branches(
        [
            ConvNorm(inputs, w(64), 1),
            nn.Sequential(*_chain(inputs, (w(48), 1), (w(64), 5))),
            nn.Sequential(*_chain(inputs, (w(64), 1), (w(96), 3), (w(96), 3))),
            _pool_branch(inputs, w(pooled)),
        ]
    )


def _reduce_35(inputs: int, w: Scale) -> Branches:
    """Figure 10, from 35 x 35 to 17 x 17."""
    return Branches(
        [
            ConvNorm(inputs, w(384), 3, stride=2, padding=0),
            nn.Sequential(*_chain(inputs, (w(64), 1), (w(96), 3)), ConvNorm(w(96), w(96), 3, stride=2, padding=0)),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _block_17(inputs: int, w: Scale, *, middle: int) -> Branches:
    """Figure 6, n = 7, on the grid of 17 x 17."""
    m = w(middle)
    return Branches(
        [
            ConvNorm(inputs, w(192), 1),
            nn.Sequential(*_chain(inputs, (m, 1), (m, (1, 7)), (w(192), (7, 1)))),
            nn.Sequential(*_chain(inputs, (m, 1), (m, (7, 1)), (m, (1, 7)), (m, (7, 1)), (w(192), (1, 7)))),
            _pool_branch(inputs, w(192)),
        ]
    )


def _reduce_17(inputs: int, w: Scale) -> Branches:
    """From 17 x 17 to 8 x 8."""
    return Branches(
        [
            nn.Sequential(ConvNorm(inputs, w(192), 1), ConvNorm(w(192), w(320), 3, stride=2, padding=0)),
            nn.Sequential(
                *_chain(inputs, (w(192), 1), (w(192), (1, 7)), (w(192), (7, 1))),
                ConvNorm(w(192), w(192), 3, stride=2, padding=0),
            ),
            nn.MaxPool2d(3, stride=2),
        ]
    )


def _block_8(inputs: int, w: Scale) -> Branches:
    """Figure 7, on the grid of 8 x 8."""

    def both_ways() -> Branches:
        return Branches([ConvNorm(w(384), w(384), (1, 3)), ConvNorm(w(384), w(384), (3, 1))])

    return Branches(
        [
            ConvNorm(inputs, w(320), 1),
            nn.Sequential(ConvNorm(inputs, w(384), 1), both_ways()),
            nn.Sequential(*_chain(inputs, (w(448), 1), (w(384), 3)), both_ways()),
            _pool_branch(inputs, w(192)),
        ]
    )


def inception_v3(*, batch: int, side: int, width: float = 1.0, classes: int = 1000, depth: int | None = None) -> Parts:
    """Inception-v3 over images of `side` pixels; `depth` keeps that many blocks of each kind at most."""
    require_side(side, at_least=75, network="inception_v3")
    model = InceptionV3(classes=classes, width=width, depth=depth)
    return classification(model, batch=batch, side=side, classes=classes)
