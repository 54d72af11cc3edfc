"""DCGAN's generator and discriminator, each as a network of its own.

Source: Radford et al. 2016, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial
Networks", figure 1 and section 3: strided convolutions, batch normalisation everywhere but at the generator's
output and the discriminator's input, ReLU and tanh in the one, LeakyReLU 0.2 in the other. Size `paper`: MNIST's
28 pixels, batch 64, as Liu et al. (IV-A) train it; two doublings from 7 x 7. Size `large` is Radford et al.'s own.

The generator's loss here is the squared distance to given images, in place of the discriminator's verdict, so
that its graph stands alone; the discriminator tells real from generated with cross entropy, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.core.errors import InvalidInput
from threadcast.networks.workload import Parts

NOISE = 100  # length of the generator's input (Radford et al. 4)


class Generator(nn.Module):
    """Noise (batch, 100) -> images (batch, colours, side, side) in -1..1.

    `width`: channels of the last hidden layer.
    """

    def __init__(self, *, side: int, width: int, colours: int) -> None:
        super().__init__()
        base, doublings = _grid(side)
        channels = width * 2 ** (doublings - 1)
        layers: list[nn.Module] = [
            nn.ConvTranspose2d(NOISE, channels, base, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
        ]  # fmt: skip
        for _ in range(doublings - 1):
            layers += [
                nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(channels // 2),
                nn.ReLU(),
            ]
            channels //= 2
        layers += [nn.ConvTranspose2d(channels, colours, 4, stride=2, padding=1), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        _init(self)

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = self.layers(noise[:, :, None, None])
        return images


class Discriminator(nn.Module):
    """Images (batch, colours, side, side) -> logits (batch,); `width` is the number of the first layer's channels."""

    def __init__(self, *, side: int, width: int, colours: int) -> None:
        super().__init__()
        base, halvings = _grid(side)
        layers: list[nn.Module] = [nn.Conv2d(colours, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        channels = width
        for _ in range(halvings - 1):
            layers += [
                nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(2 * channels),
                nn.LeakyReLU(0.2),
            ]
            channels *= 2
        layers.append(nn.Conv2d(channels, 1, base))
        self.layers = nn.Sequential(*layers)
        _init(self)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits.flatten()


def dcgan_generator(*, batch: int, side: int, width: int, colours: int = 3) -> Parts:
    """The generator, trained against given images of `side` pixels; `width` is its narrowest layer's channels."""
    model = Generator(side=side, width=width, colours=colours)
    images = torch.rand(batch, colours, side, side) * 2 - 1
    return model, (torch.rand(batch, NOISE) * 2 - 1,), images, F.mse_loss


def dcgan_discriminator(*, batch: int, side: int, width: int, colours: int = 3) -> Parts:
    """The discriminator over images of `side` pixels; `width` is its narrowest layer's channels."""
    model = Discriminator(side=side, width=width, colours=colours)
    images = torch.rand(batch, colours, side, side) * 2 - 1
    real = torch.randint(2, (batch,)).float()
    return model, (images,), real, F.binary_cross_entropy_with_logits


def _grid(side: int) -> tuple[int, int]:
    """The smallest grid, of 4 x 4 to 7 x 7 pixels, and how often it doubles up to `side`."""
    base, doublings = side, 0
    while base > 7 and base % 2 == 0:
        base, doublings = base // 2, doublings + 1
    if base > 7 or doublings < 2:
        raise InvalidInput(f"side={side} must be 4, 5, 6 or 7 doubled at least twice, such as 28, 32 or 64")
    return base, doublings


def _init(module: nn.Module) -> None:
    """Normal weights of deviation 0.02 (Radford et al. 4)."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(part.weight, std=0.02)
