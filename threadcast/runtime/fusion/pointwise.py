"""Point-wise operators as C++ expressions over vectors (`at::vec::Vectorized<float>`, short V).

They are PyTorch's own formulas (ATen/native/cpu, BinaryOpsKernel.cpp, UnaryOpsKernel.cpp, Activation.cpp), so that a
fused operator has the result of its parts. `{name}` stands for the argument of that name in the operator's schema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

_HAS_MKL: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]

POINTWISE: Mapping[OpOverload, str] = {
    aten.add.Tensor: "{self} + {other}",
    aten.sub.Tensor: "{self} - {other}",
    aten.rsub.Scalar: "{other} - {self}",
    aten.mul.Tensor: "{self} * {other}",
    aten.div.Tensor: "{self} / {other}",
    aten.where.self: "V::blendv({other}, {self}, {condition})",
    aten.neg.default: "{self}.neg()",
    aten.abs.default: "{self}.abs()",
    aten.exp.default: "{self}.exp()",
    aten.log.default: "{self}.log()",
    aten.sqrt.default: "{self}.sqrt()",
    aten.rsqrt.default: "{self}.rsqrt()",
    aten.reciprocal.default: "{self}.reciprocal()",
    aten.tanh.default: "tangent({self})" if _HAS_MKL else "{self}.tanh()",
    aten.sigmoid.default: "sigmoid({self})",
    aten.silu.default: "{self} / (V(1) + (V(0) - {self}).exp())",
    aten.relu.default: "at::vec::clamp_min({self}, V(0))",
    aten.sigmoid_backward.default: "{grad_output} * (V(1) - {output}) * {output}",
    aten.tanh_backward.default: "{grad_output} * (V(1) - {output} * {output})",
    aten.threshold_backward.default: "V::blendv({grad_output}, V(0), {self} <= {threshold})",
}
"""Formulas of operators from float32 tensors to a float32 tensor.

`remainder` has none: where the quotient overflows, PyTorch's vectors give nan and its loop over single elements a
number, and which elements are computed which way depends on threads and strides.
"""

CONDITIONS: Mapping[OpOverload, str] = {
    aten.lt.Tensor: "{self} < {other}", aten.lt.Scalar: "{self} < {other}",
    aten.le.Tensor: "{self} <= {other}", aten.le.Scalar: "{self} <= {other}",
    aten.gt.Tensor: "{self} > {other}", aten.gt.Scalar: "{self} > {other}",
    aten.ge.Tensor: "{self} >= {other}", aten.ge.Scalar: "{self} >= {other}",
    aten.eq.Tensor: "{self} == {other}", aten.eq.Scalar: "{self} == {other}",
}  # fmt: skip
"""Formulas of comparisons of float32 tensors, whose boolean results `where` takes as its condition."""

_SCALED: Mapping[Any, str] = {
    aten.add.Tensor: "at::vec::fmadd({other}, {alpha}, {self})",
    aten.sub.Tensor: "at::vec::fmadd({other}, {alpha}.neg(), {self})",
    aten.rsub.Scalar: "at::vec::fmadd({self}, {alpha}.neg(), {other})",
}
"""Formulas where `alpha` is not 1: PyTorch's kernels round the product and the sum as one."""
_DIV_FLOOR = "floor_divided({self}, {other})"
_POW_2 = "{self} * {self}"

HELPERS = """
inline V sigmoid(V x) { return (V(1) + (V(0) - x).exp()).reciprocal(); }
inline V tangent(V x) {
  const V below(0.99999994f), size = x.abs();  // MKL's is the number below 1 up to 9.0109, Sleef's up to 8.6643
  return V::blendv(x.tanh(), V::blendv(below, below.neg(), x < V(0)), (size > V(8.6643f)) & (size < V(9.0109f)));
}
inline V floor_divided(V a, V b) {
  const V basic = a / b, mod = a.fmod(b), infinite(std::numeric_limits<float>::infinity());
  // `fmod` of Sleef gives nan where the quotient overflows
  V div = V::blendv(a - mod, a, (basic.abs() == infinite) & (a.abs() != infinite)) / b;
  div = V::blendv(div, div - V(1), (mod != V(0)) & ((b < V(0)) ^ (mod < V(0))));
  V floor = div.floor();
  floor = V::blendv(floor, floor + V(1), (div - floor) > V(0.5));
  floor = V::blendv(floor, basic * V(0), div == V(0));
  return V::blendv(floor, basic, b == V(0));
}
"""
"""C++ functions that the formulas call. `floor_divided` has the signs of Python's //."""


def formula(target: Any, arguments: Mapping[str, Any]) -> str | None:
    """Return the formula of a call of `target`; None where it has none. `arguments`: by their names in the schema."""
    if arguments.get("alpha", 1) != 1:
        return _SCALED.get(target)
    if target is aten.div.Tensor_mode:
        return _DIV_FLOOR if arguments["rounding_mode"] == "floor" else None
    if target is aten.pow.Tensor_Scalar:
        return _POW_2 if arguments["exponent"] == 2 else None
    return POINTWISE.get(target) if isinstance(target, OpOverload) else None


def named(target: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by their names in the schema, with defaults for those not given."""
    found = {}
    for position, argument in enumerate(target._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        found[argument.name] = given
    return found


def literal(value: float) -> str:
    """Return the C++ expression of a vector whose elements all are this number."""
    if math.isnan(value):
        return "V(std::numeric_limits<float>::quiet_NaN())"
    if math.isinf(value):
        return f"V({'-' if value < 0 else ''}std::numeric_limits<float>::infinity())"
    return f"V(static_cast<float>({float(value)!r}))"
