"""A stacked Phased LSTM, unrolled into cells of plain tensor operations.

Source: Neil et al. 2016, "Phased LSTM: Accelerating Recurrent Network Training for Long or Event-based
Sequences", section 2, without peephole connections, as in TensorFlow's cell that Graphi measures. Sizes `small`
to `large` are Graphi's (table 1a), on the same task as the LSTM's with a time stamp for every input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from threadcast.networks.lstm import LSTMCell
from threadcast.networks.workload import Parts

LEAK = 1e-3  # slope of the closed gate (Neil et al. 2)
OPEN_RATIO = 0.1  # share of a period in which the gate is open, at the start (TensorFlow's cell)


class TimeGate(nn.Module):
    """Times (batch, 1) -> openness (batch, width), from 0 to 1; each neuron has a period, and opens once in it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Drawn evenly over the exponents, from 1 to 20 steps: of the order of the sequences' length.
        period = torch.exp(3 * torch.rand(width))
        self.period = nn.Parameter(period)
        self.shift = nn.Parameter(period * torch.rand(width))
        self.open_ratio = nn.Parameter(torch.full((width,), OPEN_RATIO))

    def forward(self, time: Tensor) -> Tensor:
        phase = torch.remainder(time - self.shift, self.period) / self.period
        rising = 2 * phase / self.open_ratio
        falling = torch.where(phase < self.open_ratio, 2 - rising, LEAK * phase)
        return torch.where(phase < self.open_ratio / 2, rising, falling)


class PhasedLSTMCell(nn.Module):
    """An LSTM cell whose new state counts only as far as the time gate is open."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = LSTMCell(inputs, width)
        self.gate = TimeGate(width)

    def forward(self, x: Tensor, time: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        openness = self.gate(time)
        closedness = 1 - openness
        proposed_h, proposed_c = self.lstm(x, h, c)
        return openness * proposed_h + closedness * h, openness * proposed_c + closedness * c


class PhasedLSTM(nn.Module):
    """(steps, batch, width) and times (steps, batch) -> (batch, classes), from the last state."""

    def __init__(self, *, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.ModuleList(PhasedLSTMCell(width, width) for _ in range(layers))
        self.classifier = nn.Linear(width, classes)

    def forward(self, sequence: Tensor, times: Tensor) -> Tensor:
        zeros = sequence.new_zeros(sequence.shape[1], self.width)
        states = [(zeros, zeros)] * len(self.cells)
        for x, time in zip(sequence.unbind(0), times.unsqueeze(-1).unbind(0), strict=True):
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, time, *states[layer])
                x = states[layer][0]
        scores: Tensor = self.classifier(states[-1][0])
        return scores


def phased_lstm(*, batch: int, steps: int, width: int, layers: int = 4) -> Parts:
    """Stacked phased LSTM layers that classify sequences of timed samples."""
    model = PhasedLSTM(width=width, layers=layers, classes=10)
    times = torch.arange(steps).unsqueeze(1) + torch.rand(steps, batch)  # in steps, increasing
    inputs = (torch.randn(steps, batch, width), times)
    return model, inputs, torch.randint(10, (batch,)), F.cross_entropy
