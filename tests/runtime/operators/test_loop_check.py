"""A generated loop that does not give what its operators give is not used, whatever is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.values import Ref
from threadcast.core.errors import ExecutionError
from threadcast.runtime.operators import fuse, loop_check, pointwise
from threadcast.runtime.operators.clusters import Clusters
from threadcast.runtime.operators.fuse import KIND, fused
from threadcast.runtime.operators.kernels import kernel_of
from threadcast.runtime.operators.library import FusedOperators
from threadcast.runtime.operators.loop_check import LoopChecks

pytestmark = needs_compiler
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have found to be right is not known here."""
    monkeypatch.setattr(fuse, "_checks", LoopChecks(fuse._operators))


def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return ((x * y).relu() + x.exp()) @ y, -(x.sigmoid() - y)


WRONG = {
    "another number": (aten.exp.default, "{self}.exp() * V(1.0001f)"),
    "of nan": (aten.relu.default, "V::blendv(V(0), {self}, {self} > V(0))"),
    "of infinity": (aten.sigmoid.default, "{self}.exp() / (V(1) + {self}.exp())"),
    "of large numbers": (aten.relu.default, "at::vec::clamp(({self}), V(0), V(1e30f))"),
    "the sign of zero": (aten.neg.default, "V(0) - {self}"),
    "operands in another order": (aten.sub.Tensor, "{other} - {alpha} * {self}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loop_is_refused_by_name_and_its_operators_run_as_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    operator, formula = WRONG[name]
    x, y = torch.randn(9, 9), torch.randn(9, 9)
    captured = capture_forward(function, x, y)
    right = fused(captured)
    assert right is not None
    monkeypatch.setitem(pointwise.POINTWISE, operator, formula)
    with caplog.at_level("WARNING", "threadcast"):
        found = fused(captured)
    (warning,) = [text for text in caplog.messages if "not fused" in text]
    assert operator._schema.name.removeprefix("aten::") in warning
    assert sum(op.kind == KIND for op in right.graph.ops) == 2
    assert found is not None, "the other group is fused"
    assert sum(op.kind == KIND for op in found.graph.ops) == 1
    torch.testing.assert_close(found.run(x, y), function(x, y), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("wrong", ["{self} * sigmoid({self} * V(1.702f))", "gelu({self}) * V(1.0001f)"])
def test_gelu_may_round_as_its_first_argument_and_no_more(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = capture_forward(lambda x: torch.nn.functional.gelu(x) * 2, torch.randn(9, 9))
    assert fused(captured) is not None
    monkeypatch.setitem(pointwise.ONEDNNS, aten.gelu.default, wrong)
    assert fused(captured) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loops_are_tried_in_their_own_type_whatever_the_default_is(dtype: torch.dtype) -> None:
    loop_check._numbers.cache_clear()
    captured = capture_forward(function, torch.randn(9, 9), torch.randn(9, 9))
    torch.set_default_dtype(dtype)
    try:
        found = fused(captured)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found is not None
    assert sum(op.kind == KIND for op in found.graph.ops) == 2


@pytest.mark.parametrize("chain", [lambda x, y: (x * y).exp(), lambda x, y: (x * y).div(y, rounding_mode="floor")])
def test_one_wrong_element_is_enough(chain: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = torch.ones(40, 50)
    clusters = Clusters(capture_forward(chain, x, x.clone()))
    kernel = kernel_of(clusters, clusters.groups[0])
    (operator,) = fuse._operators.of([kernel])

    def nearly(*inputs: Tensor) -> Tensor:
        result: Tensor = operator(*inputs).clone()
        result.view(-1)[-1] += 0.5
        return result

    wanted = [Ref(clusters.program.slot_of(i)) for i in kernel.nodes]
    inputs = [torch.rand(40, 50) + 1 for _ in kernel.inputs]
    assert loop_check._compare(clusters, kernel, wanted, operator, inputs) is None
    assert loop_check._compare(clusters, kernel, wanted, nearly, inputs) is not None


def test_nodes_that_only_a_refused_group_computed_itself_are_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def masked(x: Tensor) -> Tensor:
        return torch.where(x < 0.5, torch.scalar_tensor(2.0) * x, x.exp()) + 1

    x = torch.randn(5, 7)
    captured = capture_forward(lambda x: (masked(x), (x * 3).tanh()), x)
    monkeypatch.setitem(pointwise.POINTWISE, aten.exp.default, "{self}")
    found = fused(captured) or captured
    torch.testing.assert_close(found.run(x), (masked(x), (x * 3).tanh()), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    "chain", [lambda x, y: x.exp() - y.exp() - (x - y), lambda x, y: x.exp().div(y.exp(), rounding_mode="floor") * 2]
)
def test_rounding_that_an_operator_enlarges_is_no_difference(chain: Callable[[Tensor, Tensor], Tensor]) -> None:
    captured = capture_forward(chain, torch.ones(4, 4), torch.ones(4, 4))
    assert fused(captured) is not None


def test_quotients_that_overflow_are_rounded_down_as_eager_does() -> None:
    x, y = torch.tensor([1.0, -1.0, 3e38, 2.0] * 8), torch.tensor([1e-40, 1e-40, 0.3, 0.3] * 8)

    def floor(x: Tensor, y: Tensor) -> Tensor:
        return x.div(y, rounding_mode="floor") * 1

    found = fused(capture_forward(floor, x, y))
    assert found is not None
    assert torch.equal(found.run(x, y), floor(x, y))


def test_a_fused_operator_that_would_write_to_an_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class InPlace(FusedOperators):
        def of(self, kernels: Any) -> list[Any]:
            return [aten.mul_.Tensor for _ in kernels]

    x, y = torch.randn(9, 9), torch.randn(9, 9)
    captured = capture_forward(lambda x, y: (x * y).relu() @ y, x, y)
    assert fused(captured) is not None
    monkeypatch.setattr(fuse, "_operators", InPlace())
    with pytest.raises(ExecutionError, match="write to an input"):
        fused(captured)
