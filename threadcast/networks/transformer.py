"""A transformer encoder.

Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3 and 5.4: normalisation after each sub-layer,
sinusoidal positions, dropout of 0.1 on each sub-layer's output and on the embedding. A word is predicted at each
position. Size `medium` is the base model, `large` the big one, both with its vocabulary of 37,000.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.core.errors import InvalidInput
from threadcast.networks.workload import Parts

DROPOUT = 0.1  # Vaswani et al. 5.4


class SelfAttention(nn.Module):
    """(batch, steps, width) -> the same; three projections side by side, then attention in `heads` heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = self.output(mixed.transpose(1, 2).flatten(2))
        return x


class EncoderLayer(nn.Module):
    """(batch, steps, width) -> the same: self-attention, then a position-wise network of `hidden` units."""

    def __init__(self, *, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        for sublayer, norm in zip((self.attention, self.feed_forward), self.norms, strict=True):
            x = norm(x + self.dropout(sublayer(x)))
        return x


class TransformerEncoder(nn.Module):
    """Words (batch, steps) -> scores (batch * steps, vocabulary)."""

    positions: Tensor

    def __init__(self, *, steps: int, width: int, heads: int, hidden: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.register_buffer("positions", _sinusoids(steps, width))
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*(EncoderLayer(width=width, heads=heads, hidden=hidden) for _ in range(layers)))
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        x = self.dropout(self.embedding(words) * scale + self.positions)
        scores: Tensor = self.decoder(self.layers(x))
        return scores.flatten(0, 1)


def _sinusoids(steps: int, width: int) -> Tensor:
    """Vaswani et al. 3.5: (steps, width), sines in the even places and cosines in the odd ones."""
    frequencies = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(steps).unsqueeze(1) * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def transformer(*, batch: int, steps: int, width: int, heads: int, hidden: int, layers: int, vocabulary: int) -> Parts:
    """A transformer encoder that predicts words; InvalidInput unless `heads` divides an even `width`."""
    if width % heads or width % 2:
        raise InvalidInput(f"width={width} must be even and a multiple of heads={heads}")
    model = TransformerEncoder(
        steps=steps, width=width, heads=heads, hidden=hidden, layers=layers, vocabulary=vocabulary
    )
    words = torch.randint(vocabulary, (batch, steps))
    return model, (words,), torch.randint(vocabulary, (batch * steps,)), F.cross_entropy
