"""The cases of `benchmarks/warmup.py`: built-in networks, and five that are not, written as people write them.

`mobile`, `encoder`, `unet`, `mixer` and `recommender` need no arguments and return `(model, inputs, target, loss)`, so
that `threadcast run benchmarks/warmup_networks.py:unet` runs one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.networks.registry import load, seeded
from threadcast.networks.workload import Parts, Workload, as_workload


class DepthwiseBlock(nn.Module):
    """Expand, filter each channel by itself, project; with a short cut where the shape stays (MobileNet v2)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inside
        self.short_cut = stride == 1 and inside == outside
        self.layers = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, wide, 3, stride=stride, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.ReLU6(inplace=True), nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.short_cut else y


def mobile(batch: int = 4, side: int = 96, classes: int = 100) -> Parts:
    """A small MobileNet: images (batch, 3, side, side) -> scores of classes."""
    widths = ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1), (40, 80, 2), (80, 80, 1), (80, 112, 1), (112, 160, 2))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True),
        *(DepthwiseBlock(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(160, classes),
    )  # fmt: skip
    return model, (torch.randn(batch, 3, side, side),), torch.randint(classes, (batch,)), F.cross_entropy


class Encoder(nn.Module):
    """Words (batch, steps) -> scores of classes, by `nn.TransformerEncoder` with normalisation first."""

    def __init__(self, *, width: int, layers: int, vocabulary: int, steps: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, steps, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        x = self.encoder(self.words(words) + self.places)
        scores: Tensor = self.head(x.mean(dim=1))
        return scores


def encoder(batch: int = 4, steps: int = 64, classes: int = 10) -> Parts:
    """A classifier of texts."""
    model = Encoder(width=256, layers=3, vocabulary=5_000, steps=steps, classes=classes)
    return model, (torch.randint(5_000, (batch, steps)),), torch.randint(classes, (batch,)), F.cross_entropy


def _twice(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """Images (batch, 3, side, side) -> scores of two classes for each pixel (Ronneberger et al. 2015)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.downs = nn.ModuleList(_twice(i, o) for i, o in zip([3, *widths], widths, strict=False))
        self.middle = _twice(widths[-1], 2 * widths[-1])
        self.rises = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.ups = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for down in self.downs:
            x = down(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for rise, up in zip(self.rises, self.ups, strict=True):
            x = up(torch.cat([skipped.pop(), rise(x)], dim=1))
        scores: Tensor = self.head(x)
        return scores


def unet(batch: int = 2, side: int = 64) -> Parts:
    """A network that marks pixels."""
    return UNet(16, 3), (torch.randn(batch, 3, side, side),), torch.randint(2, (batch, side, side)), F.cross_entropy


class MixerBlock(nn.Module):
    """Mixes patches, then channels (Tolstikhin et al. 2021)."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.patches = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        y: Tensor = x + self.channels(self.norms[1](x))
        return y


class Mixer(nn.Module):
    """Images (batch, 3, side, side) -> scores of classes."""

    def __init__(self, *, side: int, patch: int, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock((side // patch) ** 2, width) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x).flatten(2).transpose(1, 2))
        scores: Tensor = self.head(x)
        return scores.mean(dim=1)


def mixer(batch: int = 4, side: int = 96, classes: int = 100) -> Parts:
    """An MLP-Mixer."""
    model = Mixer(side=side, patch=8, width=128, blocks=6, classes=classes)
    return model, (torch.randn(batch, 3, side, side),), torch.randint(classes, (batch,)), F.cross_entropy


class Recommender(nn.Module):
    """Numbers (batch, 13) and categories (batch, tables) -> a score for each example (DLRM, Naumov et al. 2019)."""

    first: Tensor
    second: Tensor

    def __init__(self, *, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        first, second = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        scores: Tensor = self.top(torch.cat([dense, products[:, self.first, self.second]], dim=1))
        return scores.squeeze(1)


def recommender(batch: int = 256) -> Parts:
    """Embeddings and two small networks: many small operators."""
    model = Recommender(tables=12, rows=2_000, width=32)
    inputs = (torch.randn(batch, 13), torch.randint(2_000, (batch, 12)))
    return model, inputs, torch.rand(batch).round(), F.binary_cross_entropy_with_logits


@dataclass(frozen=True, slots=True)
class Case:
    """A network and what is run of it: `inference` calls, or training steps by SGD."""

    title: str
    network: str
    """Name of a built-in network, or of a function of this file."""
    inference: bool
    size: str = ""
    """Empty for the networks of this file."""
    options: Mapping[str, int] = field(default_factory=dict)
    """What replaces the size's own batch, side or steps."""

    def load(self) -> Workload:
        """Build the network with its inputs; the same in every process."""
        if self.size:
            return load(self.network, self.size, **self.options)
        with seeded(0):
            return as_workload(globals()[self.network](), source=self.network, name=self.network, size="own")


CASES: tuple[Case, ...] = (
    Case("LSTM, 8 steps", "lstm", inference=False, size="small", options={"steps": 8}),
    Case("Transformer", "transformer", inference=False, size="small"),
    Case("PathNet", "pathnet", inference=False, size="small", options={"batch": 8}),
    Case("GoogLeNet", "googlenet", inference=True, size="small", options={"batch": 1}),
    Case("ResNet-18", "resnet18", inference=True, size="small", options={"batch": 4}),
    Case("MobileNet-like", "mobile", inference=True),
    Case("Text encoder", "encoder", inference=True),
    Case("MLP-Mixer", "mixer", inference=True),
    Case("U-Net", "unet", inference=False),
    Case("Recommender", "recommender", inference=False),
)
"""Five built-in networks, then five that threadcast has never seen."""
