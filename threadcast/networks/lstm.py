"""A stacked LSTM, unrolled into cells of plain tensor operations.

Source: Zaremba et al. 2014, "Recurrent Neural Network Regularization", 3.1, without its dropout (as the small
configuration there). Every cell, one a layer and time step, has its own graph nodes: one matrix product for the
input's four gates and one for the state's. The critical path runs over layers + steps cells, and cells on an
anti-diagonal may run side by side (Graphi, section 7.4).

Sizes `small` to `large` are Graphi's (table 1a): 4 layers over sequences of as many features as there are
neurons; Graphi states neither inputs nor outputs, so that the last state is classified into 10 classes. Size
`paper` is Liu et al.'s (IV-A) PTB model, batch 20: a vocabulary of 10,000 words, 2 layers of 200 neurons, 20 steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.networks.workload import Parts


class LSTMCell(nn.Module):
    """One layer at one time step: (batch, inputs) and the state (h, c), each (batch, width) -> new state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * width)
        self.from_state = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.from_input(x) + self.from_state(h)
        i, f, o, g = gates.chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class StackedLSTM(nn.Module):
    """(steps, batch, inputs) -> the top layer's state at each step, `steps` tensors (batch, width)."""

    def __init__(self, inputs: int, width: int, layers: int) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.ModuleList(LSTMCell(inputs if layer == 0 else width, width) for layer in range(layers))

    def forward(self, sequence: Tensor) -> list[Tensor]:
        zeros = sequence.new_zeros(sequence.shape[1], self.width)
        states = [(zeros, zeros)] * len(self.cells)
        outputs = []
        for x in sequence.unbind(0):
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, *states[layer])
                x = states[layer][0]
            outputs.append(x)
        return outputs


class SequenceClassifier(nn.Module):
    """(steps, batch, width) -> (batch, classes), from the last state."""

    def __init__(self, *, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm = StackedLSTM(width, width, layers)
        self.classifier = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.lstm(sequence)[-1])
        return scores


class LanguageModel(nn.Module):
    """Words (steps, batch) -> the next word's scores (steps * batch, vocabulary)."""

    def __init__(self, *, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = StackedLSTM(width, width, layers)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.decoder(torch.cat(self.lstm(self.embedding(words))))
        return scores


def lstm(*, batch: int, steps: int, width: int, layers: int = 4, vocabulary: int | None = None) -> Parts:
    """Stacked LSTM layers: a language model over `vocabulary` words, without one a classifier of sequences."""
    if vocabulary is None:
        classifier = SequenceClassifier(width=width, layers=layers, classes=10)
        return classifier, (torch.randn(steps, batch, width),), torch.randint(10, (batch,)), F.cross_entropy
    model = LanguageModel(width=width, layers=layers, vocabulary=vocabulary)
    words = torch.randint(vocabulary, (steps, batch))
    return model, (words,), torch.randint(vocabulary, (steps * batch,)), F.cross_entropy
