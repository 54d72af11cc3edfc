"""A program that PyTorch runs as Dynamo traced it leaves modes as they were where an operator raises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from threadcast.runtime.compiled.compiled_call import CompiledCall

pytestmark = pytest.mark.compared


def test_an_operator_that_raises_in_eager_pytorch_leaves_modes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompiledCall, "_by", lambda call, turn: call._eager)
    table, layer = torch.randn(4, 8), torch.nn.Linear(8, 8)

    def function(x: Tensor, rows: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found = table[rows]
        result: Tensor = layer(x) + found
        return result

    compiled, x = torch.compile(function, backend="threadcast"), torch.randn(2, 8)
    with torch.enable_grad():
        torch.testing.assert_close(compiled(x, torch.tensor([0, 3])), function(x, torch.tensor([0, 3])))
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([0, 4]))
        assert torch.is_grad_enabled()
    inside = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    assert inside == 1, "it is still within an autocast context, at whose end PyTorch does not forget casts of weights"
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("within", ["attention", "vmap"])
def test_an_operator_that_raises_leaves_transformations_and_ways_of_attention_as_they_were(
    within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledCall, "_by", lambda call, turn: call._eager)
    table, query = torch.randn(4, 3), torch.randn(1, 1, 4, 8)

    def attends(rows: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.MATH]):
            found: Tensor = scaled_dot_product_attention(query, query, query) + table[rows].sum()
        return found

    def mapped(rows: Tensor) -> Tensor:
        found: Tensor = torch.vmap(lambda row: table[row].sin().sum())(rows)
        return found

    function = {"attention": attends, "vmap": mapped}[within]
    compiled = torch.compile(function, backend="threadcast")
    torch.testing.assert_close(compiled(torch.tensor([0, 3])), function(torch.tensor([0, 3])))
    with pytest.raises(IndexError):
        compiled(torch.tensor([0, 4]))
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch._C._functorch.peek_interpreter_stack() is None
    torch.testing.assert_close(compiled(torch.tensor([0, 3])), function(torch.tensor([0, 3])))
