"""Results of backends are compared with PyTorch's in the types that the program has."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.backends.programs import ONNX, call_by
from tests.runtime.backends.searches import found_by, search_for
from tests.runtime.compiler import needs_compiler
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.frozen import FlatModule

pytestmark = pytest.mark.usefixtures("folder")

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("library", ONNX)
def test_no_library_rounds_to_bfloat16(library: str) -> None:
    """OpenVINO's own choice is bfloat16 on processors that have it."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Flatten(), nn.Linear(6272, 64)).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        wanted, (found,) = module(x), call_by(library, torch.export.export(module, (x,)))([x])
    assert float((found - wanted).abs().max() / wanted.abs().max()) <= 1e-5


@pytest.mark.system
@needs_compiler
@pytest.mark.parametrize("backend", ["openvino", "torch.compile"])
def test_weights_that_are_kept_in_bfloat16_make_no_program_rough(backend: str) -> None:
    model = Stored().eval()
    found = found_by(search_for(model, ((X,), {}), among=[backend], close=1e6))
    with torch.no_grad():
        wanted = model(X)
    for way in found:
        torch.testing.assert_close(way.run((X,), {}), wanted, rtol=1e-3, atol=1e-4)


class Stored(nn.Module):
    """Computes in float32 with weights that are kept in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight: Tensor
        self.register_buffer("weight", torch.randn(6, 6).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight.float())


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        (ONES, ONES.double(), "an answer is"),
        (ONES, ONES[None], "an answer is"),
        (ONES, ONES + 0.01, "differ"),
        (ONES.double(), ONES.double() * (1 + 1e-7), "differ"),
        (torch.tensor([-math.inf, 1.0, 2.0]), torch.tensor([-math.inf, 1.0, 2.2]), "differ"),
        (torch.tensor([math.inf, 1.0]), torch.tensor([5.0, 1.0]), "differ"),
        (torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 1.0]), "differ"),
        (torch.tensor([-1e30, 1.0, 2.0]), torch.tensor([-1e30, 1.0, 2.2]), "differ"),
        (torch.tensor([50_000, 3]), torch.tensor([50_001, 3]), "differ"),
        (torch.tensor([True, False]), torch.tensor([True, True]), "differ"),
    ],
)
def test_answers_of_another_type_shape_or_number_are_refused(wanted: Tensor, found: Tensor, reason: str) -> None:
    flat = FlatModule(nn.Identity(), ((torch.zeros(1),), {}), result=wanted)
    flat.check(lambda _: [wanted.clone()])
    with pytest.raises(CaptureError, match=reason):
        flat.check(lambda _: [found])
