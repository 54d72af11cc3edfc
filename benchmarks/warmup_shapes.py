"""Sequences of calls whose shapes change, the same in every process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import threadcast

LENGTHS = range(16, 66)
"""50 sequence lengths."""


class Block(nn.Module):
    """A transformer block that takes the keys and values of earlier tokens."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joint, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        parts = self.joint(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        mixed = F.scaled_dot_product_attention(query, key, value)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x)))), (key, value)


class Decoder(nn.Module):
    """Tokens (batch, steps) and earlier keys and values -> scores, and the longer keys and values."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4, vocabulary: int = 2_000) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, found = self.words(words), []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, (past[2 * i], past[2 * i + 1]) if past else None)
            found += pair
        return (self.head(x), *found)


Calls = Iterator[object]
"""Each `next` runs one call."""


def last_batch(run: Callable[..., Any]) -> Calls:
    """Epochs of 20 batches of 32 images and one of 7."""
    while True:
        for batch in (*[32] * 20, 7):
            yield run(torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,)))


def lengths(run: Callable[..., Any]) -> Calls:
    """Texts of 50 lengths at random."""
    draws = random.Random(0)
    while True:
        yield run(torch.randint(2_000, (4, draws.choice(LENGTHS))))


def growing(run: Callable[..., Any]) -> Calls:
    """100 tokens after a text of 16, one after the other, each with the keys and values of all before; then anew."""
    while True:
        _, *past = run(torch.randint(2_000, (1, 16)))
        yield None
        for _ in range(100):
            _, *past = run(torch.randint(2_000, (1, 1)), *past)
            yield None


def image_network() -> nn.Module:
    """A small convolutional network."""
    widths = ((3, 32), (32, 64), (64, 64))
    layers = [part for i, o in widths for part in (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


def training(who: str) -> Callable[..., Any]:
    """A training step of `image_network`."""
    model = image_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if who == "optimize":
        return threadcast.optimize_training(model, F.cross_entropy, optimizer)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    return step


def inference(who: str) -> Callable[..., Any]:
    """A call of `Decoder`."""
    model = Decoder().eval()
    return threadcast.optimize(model) if who == "optimize" else torch.no_grad()(model)


SEQUENCES: dict[str, tuple[Callable[[str], Callable[..., Any]], Callable[[Callable[..., Any]], Calls]]] = {
    "a last batch: 20 of 32, one of 7 (training)": (training, last_batch),
    "50 sequence lengths (inference)": (inference, lengths),
    "a growing key-value cache (inference)": (inference, growing),
}
"""Title: what is run, and its calls."""


def sequence(title: str, who: str) -> tuple[Any, Callable[[], object]]:
    """What is run, and a function that runs the next call of the sequence; `who` is "eager" or "optimize"."""
    torch.manual_seed(0)
    build, calls = SEQUENCES[title]
    run = build(who)
    return run, partial(next, calls(run))
