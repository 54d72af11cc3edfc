"""Writes out operators that exporters and compilers do not know or fail at.

In eval mode without gradients `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call one operator each. Other
backends run the operators that these stand for. PyTorch's exporter to ONNX fails where integers are subtracted from a
number. Norms have the mean taken off what they are given (`constant_rows.py`). Activations that write in place, which
are decomposed at some length, return a new tensor. Views may be copies where nothing writes to them: what is written
out may lie in memory in another order, as attention's results do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.nn import functional as F

from threadcast.runtime.backends import constant_rows
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.program_values import constants, is_written

aten = torch.ops.aten


def written_out(program: ReadProgram) -> fx.GraphModule:
    """Return a module that computes the same with operators that backends know, where these are known.

    The program runs for its example once, without gradients.
    """
    with torch.no_grad():
        return _WrittenOut(program).transform()


class _WrittenOut(fx.Transformer):
    def __init__(self, program: ReadProgram) -> None:
        module = program.module
        super().__init__(module)
        self._differences = constant_rows.differences_from_mean(module)
        self._in_place = _returning(module.graph)
        self._constants, self._needless = constants(module, program.example)
        self.module = nn.Module()  # the program's own stays as it is
        for name, weight in module.named_buffers():
            self.module.register_buffer(name, weight)

    def run_node(self, n: fx.Node) -> Any:
        if n in self._needless:
            return None
        if n in self._constants:
            self.module.register_buffer(name := f"constant_{n.name}", self._constants[n])
            return self.get_attr(name, (), {})
        if (other := self._in_place.get(n)) is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            found = super().call_function(_in_type_of, (args[0], super().call_function(other, args, kwargs)), {})
        elif n.target is aten.view.default and not is_written(n):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            found = super().call_function(aten.reshape.default, args, kwargs)
        elif n.target in constant_rows.NORMS and all(one.args[1] == 0 for one in n.users):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            found = super().call_function(constant_rows.NORMS[n.target], args, kwargs)
        else:
            found = super().run_node(n)
        if n not in self._differences:
            return found
        return super().call_function(constant_rows.centred, (found, self._differences[n]), {})

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = _BY_TYPE.get(target, target)
        found = _BY_GRAPH.get(target)
        result = None if found is None else found(*args, **kwargs)
        return super().call_function(target, args, kwargs) if result is None else result


def _returning(graph: fx.Graph) -> dict[fx.Node, OpOverload]:
    """The nodes that write to a new tensor which nothing else uses from then on, with operators that return another."""
    at, found = {node: i for i, node in enumerate(graph.nodes)}, dict[fx.Node, OpOverload]()
    for node in graph.nodes:
        other, first = _operator_returning(node.target), node.args[0] if node.args else None
        if other is None or not isinstance(first, fx.Node) or not (first in found or _is_new(first)):
            continue
        if all(user is node or (at[user] < at[node] and _is_new(user)) for user in first.users):
            found[node] = other
    return found


def _operator_returning(target: Any) -> OpOverload | None:
    """The operator that returns what `target` writes; None where that does not write in place."""
    if not isinstance(target, OpOverload) or not target._schema.name.endswith("_"):
        return None
    packet = getattr(aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
    others = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return next((other for other in others if _types(other) == _types(target)), None)


def _types(called: OpOverload) -> list[str]:
    """The types of an operator's arguments: that of `pow_.Scalar` has those of `pow.Tensor_Scalar`."""
    return [str(argument.type) for argument in called._schema.arguments]


def _is_new(node: fx.Node) -> bool:
    """Whether a node's results share no memory with anything else."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and _is_new(node.args[0])
    of = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    return len(of) > 0 and all(one.alias_info is None and str(one.type) == "Tensor" for one in of)


def _in_type_of(first: Tensor, found: Tensor) -> Tensor:
    return found if found.dtype is first.dtype else found.to(first.dtype)


def _encoder_layer(
    x: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, out_weight: Tensor, out_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor,
    norm_bias_2: Tensor, weight_1: Tensor, bias_1: Tensor, weight_2: Tensor, bias_2: Tensor, mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor | None:  # fmt: skip
    if mask is not None:
        return None

    def first_norm(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), norm_weight_1, norm_bias_1, eps)

    def second_norm(y: Tensor) -> Tensor:
        return F.layer_norm(y, (width,), norm_weight_2, norm_bias_2, eps)

    def attention(y: Tensor) -> Tensor:
        return _attention(y, width, heads, qkv_weight, qkv_bias, out_weight, out_bias)

    def feed_forward(y: Tensor) -> Tensor:
        hidden = F.linear(y, weight_1, bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), weight_2, bias_2)

    if norm_first:
        x = x + attention(first_norm(x))
        return x + feed_forward(second_norm(x))
    x = first_norm(x + attention(x))
    return second_norm(x + feed_forward(x))


def _self_attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    out_weight: Tensor, out_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, None] | None:  # fmt: skip
    if mask is not None or need_weights or not query is key is value:
        return None
    return _attention(query, width, heads, qkv_weight, qkv_bias, out_weight, out_bias), None


def _attention(
    x: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, out_weight: Tensor, out_bias: Tensor
) -> Tensor:
    """Self-attention of (batch, steps, width) in `heads` heads."""
    stacked = torch.unflatten(F.linear(x, qkv_weight, qkv_bias), -1, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(stacked[0], stacked[1], stacked[2])
    return F.linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias)


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, None] | None:  # fmt: skip
    if dropout_p:
        return None
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    if attn_mask is None:
        return mixed, None
    nothing = (attn_mask == -math.inf).all(-1, keepdim=True)  # for which PyTorch returns 0, and backends nan
    return mixed.masked_fill(nothing, 0.0), None


def _subtracted_from(x: Tensor, number: float, alpha: float = 1) -> Tensor:
    """`number` - `alpha` * x; of whole numbers by a sum, which wraps and is rounded alike."""
    if alpha != 1 or x.dtype not in (torch.int32, torch.int64) or not isinstance(number, int | float):
        return aten.rsub.Scalar(x, number, alpha)  # type: ignore[no-any-return]
    return x.mul(-1.0 if isinstance(number, float) else -1).add(number)


def _difference(first: Tensor | float, second: Tensor | float, *, alpha: float = 1) -> Tensor:
    if isinstance(first, int | float) and isinstance(second, Tensor):
        return _subtracted_from(second, first, alpha)
    return aten.sub.Tensor(first, second, alpha=alpha)  # type: ignore[no-any-return]


_BY_GRAPH: dict[Callable[..., Any], Callable[..., Any]] = {
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten._native_multi_head_attention.default: _self_attention,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention,
}
"""For an operator, a function that computes the same, or returns None where it does not. It is run with the graph's
values: these tell which arguments are one, and not the example, where two may be the same tensor by chance."""

_BY_TYPE: dict[Callable[..., Any], Callable[..., Any]] = {
    aten.rsub.Scalar: _subtracted_from,
    aten.sub.Tensor: _difference,
    **constant_rows.SPREADS,
}
"""For an operator, a function that computes the same. It is called in the operator's place: what it runs depends on
types, which the graph's values do not have."""
