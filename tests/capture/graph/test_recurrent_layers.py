"""PyTorch's recurrent layers are captured: LSTM as the library's operator where it has one, others as their cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from threadcast.capture.graph.capture import capture_forward, capture_training


class Recurrent(nn.Module):
    """A recurrent layer and scores of classes from its last result."""

    def __init__(self, kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
        super().__init__()
        self.name = "layer"
        self.layer = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(8 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(getattr(self, self.name)(x)[0][:, -1])
        return scores


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "several"])
def test_recurrent_layers_are_captured(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, x, y = Recurrent(kind, options), torch.randn(2, 4, 6), torch.tensor([0, 2])
    captured = capture_forward(model.eval(), x)
    assert ("mkldnn_rnn_layer" in captured.graph.ids) == (kind is nn.LSTM)
    assert set(map(id, model.layer._flat_weights)) == set(map(id, model.layer.parameters())), "they are its own again"
    with torch.no_grad():
        torch.testing.assert_close(captured.run(x + 1), model(x + 1))
    names = [name for name, _ in model.named_parameters()]
    wanted = torch.autograd.grad(cross_entropy(model.train()(x), y), list(model.parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gradients = capture_training(model, cross_entropy, optimizer, (x,), y, gradients=True).run()["gradients"]
    torch.testing.assert_close([gradients[name] for name in names], list(wanted))
