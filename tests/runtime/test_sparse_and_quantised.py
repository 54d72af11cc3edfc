"""Sparse gradients and models quantised to int8 run as in PyTorch, with a warning."""

from __future__ import annotations

import copy
import warnings
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import threadcast
from threadcast.runtime.doors.compile_backend import backend

STEPS = 12

of_quantisation = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")


class Words(nn.Module):
    """The mean of words' embeddings, whose gradient is sparse, and scores of classes."""

    def __init__(self, *, bag: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(50, 8, sparse=True) if bag else nn.Embedding(50, 8, sparse=True)
        self.scores, self.bag = nn.Linear(8, 3), bag

    def forward(self, words: Tensor) -> Tensor:
        found = self.words(words)
        result: Tensor = self.scores(found if self.bag else found.mean(1))
        return result


def optimizer_of(kind: type[Optimizer], model: Words) -> Optimizer:
    sparse = kind is torch.optim.SparseAdam
    return kind(model.words.parameters() if sparse else model.parameters(), lr=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
@pytest.mark.parametrize("bag", [False, True], ids=["embedding", "bag"])
def test_sparse_gradients_train_as_in_pytorch_and_are_said_aloud(bag: bool, kind: type[Optimizer]) -> None:
    torch.manual_seed(0)
    mine = Words(bag=bag)
    eager = copy.deepcopy(mine)
    drawn = torch.Generator().manual_seed(0)
    batches = [(torch.randint(50, (4, 6), generator=drawn), torch.randint(3, (4,), generator=drawn))] * STEPS
    wanted = optimizer_of(kind, eager)
    with (
        warnings.catch_warnings(),
        closing(threadcast.optimize_training(mine, cross_entropy, optimizer_of(kind, mine))) as step,
    ):
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        with pytest.warns(UserWarning, match="is sparse"):
            losses = [step(*batch) for batch in batches]
    for (words, target), loss in zip(batches, losses, strict=True):
        wanted.zero_grad()
        value = cross_entropy(eager(words), target)
        value.backward()  # type: ignore[no-untyped-call]
        wanted.step()
        torch.testing.assert_close(loss, value.detach())
    for one, other in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class Recurrent(nn.Module):
    """A recurrent layer and scores of classes from its last result."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(16, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(x)[0][:, -1])
        return result


@pytest.fixture(params=["linear", "lstm"])
def quantised_and_input(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    """A model that is quantised dynamically to int8, and an input."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    model, x = (linear, torch.randn(8, 16)) if request.param == "linear" else (Recurrent(), torch.randn(2, 5, 16))
    quantised: nn.Module = torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)
    return quantised, x


@of_quantisation
def test_models_quantised_dynamically_to_int8_run_as_in_pytorch_and_it_is_said(
    quantised_and_input: tuple[nn.Module, Tensor],
) -> None:
    quantised, x = quantised_and_input
    with torch.no_grad():
        wanted = quantised(x)
    with (
        warnings.catch_warnings(record=True) as said,
        closing(threadcast.optimize(quantised, backends=False)) as call,
    ):
        warnings.simplefilter("always")
        for _ in range(STEPS):
            assert torch.equal(call(x), wanted)
        assert call.reports[0].runs == "default"
    found = [str(warning.message) for warning in said if "threadcast" in str(warning.message)]
    assert len(found) == 1
    assert "is quantised" in found[0]


@of_quantisation
@pytest.mark.filterwarnings("ignore:threadcast runs")
def test_quantised_models_that_are_compiled_have_the_results_of_pytorch(
    quantised_and_input: tuple[nn.Module, Tensor],
) -> None:
    quantised, x = quantised_and_input
    compiled = torch.compile(quantised, backend=backend)
    try:
        with torch.no_grad():
            wanted = quantised(x)
            for _ in range(STEPS):
                torch.testing.assert_close(compiled(x), wanted)
    finally:
        torch._dynamo.reset()
