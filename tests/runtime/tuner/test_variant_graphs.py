"""The graphs of a call: as captured, with faster operators, and fused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.runtime.compiler import needs_compiler
from threadcast.capture.graph.capture import capture_forward
from threadcast.capture.graph.captured import Captured
from threadcast.runtime.operators import products
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.variant_graphs import VariantGraphs

pytestmark = needs_compiler

PLAIN = Variant(MemoryFormat.AS_GIVEN)
FUSED = Variant(MemoryFormat.AS_GIVEN, fused=True)


@pytest.fixture(autouse=True)
def _faster_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "serves", lambda: True)


def graphs_of(function: Callable[[Tensor], Tensor], *, ours: bool = True) -> VariantGraphs:
    x = torch.randn(1, 96, 96, generator=torch.Generator().manual_seed(0))
    return VariantGraphs(lambda _: capture_forward(function, x), [MemoryFormat.AS_GIVEN], ours=ours)


def libraries(captured: Captured | None) -> set[str]:
    """The libraries of a graph's operators."""
    assert captured is not None
    return {node.target.namespace for node in captured.program.nodes}  # type: ignore[attr-defined]


def product(x: Tensor) -> Tensor:
    return x[0] @ x[0]


def test_only_graphs_that_are_planned_have_operators_of_our_own() -> None:
    graphs = graphs_of(product)
    assert libraries(graphs.find(PLAIN)) == {"aten", "threadcast"}
    for captured in (graphs.first, graphs.captured_in(MemoryFormat.AS_GIVEN), graphs.as_captured(PLAIN)):
        assert libraries(captured) == {"aten"}, "which other processes and backends take"


def test_without_them_graphs_are_as_captured() -> None:
    graphs = graphs_of(product, ours=False)
    assert graphs.find(PLAIN) is graphs.first


def test_faster_operators_alone_make_no_fused_graph() -> None:
    assert graphs_of(product).find(FUSED) is None


def test_a_fused_graph_has_them_too() -> None:
    graphs = graphs_of(lambda x: (x[0] @ x[0]).exp() * 2 + 1)
    fused = graphs.find(FUSED)
    assert fused is not None
    assert sorted(op.kind for op in fused.graph.ops if not op.is_view) == ["blocked_mm", "fused_pointwise"]
    assert graphs.size_bytes > 0
