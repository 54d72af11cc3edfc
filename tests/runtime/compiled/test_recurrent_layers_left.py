"""Models whose recurrent layers Dynamo does not trace say so once, also where no graph is left of them."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

from threadcast.runtime.compiled.recurrent_layers_left import LEFT, tell_of_recurrent_layers

pytestmark = pytest.mark.filterwarnings("default:threadcast runs recurrent layers")


class Tagger(nn.Module):
    """A recurrent layer between two others."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words, self.layer, self.tags = nn.Embedding(9, 4), kind(4, 4), nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.tags(self.layer(self.words(words))[0])
        return found


def told_in(*models: nn.Module) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        for model in models:
            torch.compile(model, backend="threadcast")(torch.zeros(3, 2, dtype=torch.long))
    return [str(one.message) for one in caught if LEFT.replace("or ", "") in str(one.message)]


def test_recurrent_layers_that_are_left_out_are_told_once_with_what_plans_them() -> None:
    tell_of_recurrent_layers()  # as the import of the backend does, which these tests have long imported
    (told,) = told_in(Tagger(nn.LSTM), Tagger(nn.LSTM), Tagger(nn.GRU))
    assert "threadcast.optimize(model)" in told
    assert told_in(Tagger(nn.RNN)) == []


def test_models_without_recurrent_layers_say_nothing() -> None:
    tell_of_recurrent_layers()
    assert told_in(nn.Embedding(9, 4)) == []


def test_naming_the_backend_is_enough() -> None:
    program = """
import warnings, torch
from torch import nn
compiled = torch.compile(nn.LSTM(4, 4), backend="threadcast")
with warnings.catch_warnings(record=True) as caught:
    compiled(torch.zeros(3, 2, 4))
print([str(one.message) for one in caught if "threadcast.optimize(model)" in str(one.message)] != [])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
