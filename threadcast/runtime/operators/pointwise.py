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
    aten.silu_backward.default: "silu_gradient({grad_output}, {self})",
    aten.relu.default: "at::vec::clamp_min({self}, V(0))",
    aten.leaky_relu.default: "{self} * V::blendv({negative_slope}, V(1), {self} > V(0))",
    aten.maximum.default: "at::vec::maximum({self}, {other})",
    aten.minimum.default: "at::vec::minimum({self}, {other})",
    aten.sigmoid_backward.default: "{grad_output} * (V(1) - {output}) * {output}",
    aten.tanh_backward.default: "{grad_output} * at::vec::fnmadd({output}, {output}, V(1))",
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
ONEDNNS: Mapping[OpOverload, str] = {
    aten.gelu.default: "gelu({self})",
    aten.gelu_backward.default: "gelu_gradient({grad_output}, {self})",
}
"""Formulas of what PyTorch has oneDNN compute, which takes 5 to 10 us to begin; a loop is faster for `ONEDNNS_MOST`
numbers at most. They are the exact `gelu`'s, and add numbers of nearly equal size: a rounding may be as large as one of
the first argument."""
ONEDNNS_MOST = 1 << 15

HELPERS = """
inline V sigmoid(V x) { return (V(1) + (V(0) - x).exp()).reciprocal(); }
constexpr float kHalfRoot = M_SQRT1_2;
inline V silu_gradient(V gradient, V x) {
  const V sigmoid = V(1) / (V(1) + x.neg().exp());
  return gradient * sigmoid * at::vec::fmadd(x, V(1) - sigmoid, V(1));
}
inline V gelu(V x) {  // as oneDNN's of each kind of vectors, also for numbers that are infinite or become so
  const V erf = (x * V(kHalfRoot)).erf();
#ifdef CPU_CAPABILITY_AVX512
  const V product = x * (V(1) + erf) * V(0.5f);
  return V::blendv(product, x - x, x.abs() == V(std::numeric_limits<float>::infinity()));
#else
  return at::vec::fmadd(x * V(0.5f), erf, x * V(0.5f));
#endif
}
inline V gelu_gradient(V gradient, V x) {
  constexpr float factor = M_2_SQRTPI * M_SQRT1_2;
  const V slope = (x * V(kHalfRoot)).erf() + x * V(factor) * (x * x * V(-0.5f)).exp();  // -1 for small x, as oneDNN's
  return gradient * (V(0.5f) * (V(1) + slope));
}
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
    if target in ONEDNNS:
        return ONEDNNS[target] if arguments["approximate"] == "none" else None
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
