"""Floating-point operations and bytes moved by an op, from its shapes alone.

One multiply-add counts as two operations. Bytes are compulsory traffic: every distinct input element is read once
and every output element written once, as in the roofline model (Williams et al. 2009). Real traffic is larger where
caches do not hold a value until it is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from threadcast.core.tensor import TensorSpec

Specs = Sequence[TensorSpec]

VIEW_KINDS = frozenset({
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "slice",
    "select", "split", "split_with_sizes", "unbind", "chunk", "detach", "alias", "as_strided", "diagonal",
    "movedim", "unfold_view", "view_as_real", "getitem", "lift_fresh", "narrow",
})  # fmt: skip
"""Kinds that only describe the same memory in another way: no arithmetic and no traffic."""

_LOOK_UPS = frozenset({"embedding", "index_select", "gather"})
"""Kinds that read only as many elements of their first input as they write."""


def analytic_cost(kind: str, inputs: Specs, outputs: Specs) -> tuple[float, float]:
    """Return (flops, bytes moved) of one run of the op."""
    if kind in VIEW_KINDS:
        return 0.0, 0.0
    count = _FLOPS.get(kind)
    flops = count(inputs, outputs) if count else _pointwise(inputs, outputs)
    moved = sum(spec.size_bytes for spec in (*inputs, *outputs))
    if kind in _LOOK_UPS and inputs and outputs:
        moved -= max(inputs[0].size_bytes - outputs[0].size_bytes, 0)
    return float(flops), float(moved)


def _pointwise(inputs: Specs, outputs: Specs) -> int:
    return max((spec.numel for spec in (*inputs, *outputs)), default=0)


def _convolution(inputs: Specs, outputs: Specs) -> int:
    """Each output element takes one multiply-add per weight of its filter (input, weight, bias?)."""
    if len(inputs) < 2 or not outputs or not inputs[1].shape:
        return _pointwise(inputs, outputs)
    weight = inputs[1]
    return 2 * outputs[0].numel * weight.numel // max(weight.shape[0], 1)


def _convolution_transposed(inputs: Specs, outputs: Specs) -> int:
    """Each input element is spread over its filter; weight is (in, out / groups, ...)."""
    if len(inputs) < 2 or not inputs[1].shape:
        return _pointwise(inputs, outputs)
    weight = inputs[1]
    return 2 * inputs[0].numel * weight.numel // max(weight.shape[0], 1)


def _convolution_gradient(inputs: Specs, outputs: Specs) -> int:
    """Both gradients cost what the forward pass costs (grad_output, input, weight)."""
    if len(inputs) < 3:
        return _pointwise(inputs, outputs)
    return _convolution((inputs[1], inputs[2]), (inputs[0],))


def _convolution_transposed_gradient(inputs: Specs, outputs: Specs) -> int:
    if len(inputs) < 3:
        return _pointwise(inputs, outputs)
    return _convolution_transposed((inputs[1], inputs[2]), (inputs[0],))


def _matrix_product(inputs: Specs, outputs: Specs) -> int:
    """The last two inputs are (..., m, k) and (..., k, n) or (k,); each output element takes k multiply-adds."""
    if len(inputs) < 2 or not inputs[-2].shape:
        return _pointwise(inputs, outputs)
    left, right = inputs[-2], inputs[-1]
    if outputs:
        return 2 * outputs[0].numel * left.shape[-1]
    columns = right.shape[-1] if len(right.shape) > 1 else 1
    return 2 * left.numel * columns


def _linear(inputs: Specs, outputs: Specs) -> int:
    """Input (..., k), weight (n, k)."""
    if len(inputs) < 2 or not inputs[1].shape:
        return _pointwise(inputs, outputs)
    return 2 * inputs[0].numel * inputs[1].shape[0]


def _attention(products: int, key: int) -> Callable[[Specs, Specs], int]:
    """A count for attention: `products` matrix products of 2 b h l s e operations each.

    Of the inputs with four sides, number `key` is the keys (b, h, s, e), the one before it the query (b, h, l, e).
    """

    def count(inputs: Specs, outputs: Specs) -> int:
        tensors = [spec for spec in inputs if len(spec.shape) == 4]
        if len(tensors) <= key:
            return _pointwise(inputs, outputs)
        return products * 2 * tensors[key - 1].numel * tensors[key].shape[2]

    return count


def _layer(inputs: Specs, outputs: Specs) -> int:
    """Tokens (b, l, e) first, then weights: each token takes one multiply-add per weight of a matrix, and attention
    two for each other token of its row and element.
    """
    if not inputs or len(inputs[0].shape) != 3 or not inputs[0].numel:
        return _pointwise(inputs, outputs)
    tokens, weights = inputs[0], sum(spec.numel for spec in inputs[1:] if len(spec.shape) == 2)
    return 2 * tokens.numel // tokens.shape[2] * weights + 4 * tokens.numel * tokens.shape[1]


_FLOPS: dict[str, Callable[[Specs, Specs], int]] = {
    "convolution": _convolution,
    "convolution_transposed": _convolution_transposed,
    "convolution_backward_input": _convolution_gradient,
    "convolution_backward_weight": _convolution_gradient,
    "convolution_transposed_backward_input": _convolution_transposed_gradient,
    "convolution_transposed_backward_weight": _convolution_transposed_gradient,
    "mm": _matrix_product,
    "bmm": _matrix_product,
    "addmm": _matrix_product,
    "baddbmm": _matrix_product,
    "mv": _matrix_product,
    "matmul": _matrix_product,
    "linear": _linear,
    "_transformer_encoder_layer_fwd": _layer,
    "_native_multi_head_attention": _layer,
    "scaled_dot_product_attention": _attention(2, key=1),  # query, key, value
    "scaled_dot_product_attention_backward": _attention(5, key=2),  # gradient, query, key, value, output
}
