"""Where a backend may lose a NaN that arises inside a program from finite numbers.

`NumberGuard` sees NaN in arguments and results. In between, backends make another number of it at some operators: the
maximum of NaN and 0 is 0 in OpenVINO. PyTorch's result is NaN then, and theirs a number, which nothing shows. So each
operator that may make NaN is followed: it is harmless where its NaN surely comes to a result on some way.

Not followed are numbers that are too large for their type.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

_EXTREMES = frozenset((
    "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "sign", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
))  # fmt: skip
_LIMITS = frozenset(("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max"))
LOSES: Mapping[str, frozenset[str]] = {
    "onnxruntime": _EXTREMES,
    "openvino": _EXTREMES | _LIMITS | {
        "hardsigmoid", "exp", "exp2", "softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax",
        "logsumexp", "maximum", "minimum", "topk", "sort", "argsort", "celu", "bool",
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    },
    "torch.compile": _LIMITS,
}  # fmt: skip
"""By backend, the operators that may give a number for NaN: ONNX Runtime 1.32, OpenVINO 2026.4, and Inductor, which has
oneDNN compute them with the products before them. Found by running each."""

_CUT = frozenset((
    "slice", "select", "index", "index_select", "gather", "narrow", "split", "split_with_sizes", "chunk", "unbind",
    "where", "masked_fill", "masked_select", "take", "topk", "scatter", "index_put", "constant_pad_nd", "tril", "triu",
    "embedding", "nan_to_num", "isnan", "eq", "gt", "ge", "lt", "le", "logical_not", "logical_and", "logical_or",
    "bitwise_and", "bitwise_or", "bitwise_not", "nonzero", "one_hot", "round", "floor", "upsample_nearest2d",
    "grid_sampler_2d",
))  # fmt: skip
"""Operators that may leave a NaN out in PyTorch, too."""

_ROOTS = frozenset(("log", "log2", "log10", "log1p", "sqrt"))
"""NaN of what is negative; `rsqrt` and `pow` are, too, and infinite of 0."""
_OTHERS = frozenset(("acos", "asin", "acosh", "atanh", "logit", "lgamma", "digamma", "polygamma", "erfinv", "xlogy"))
"""NaN of some numbers, which are not followed here."""
_DIVIDE = frozenset(("div", "fmod", "remainder", "floor_divide"))
_OF_INFINITIES = frozenset((
    "softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "mul", "mm", "bmm", "matmul", "addmm",
    "baddbmm", "linear", "sum", "mean", "cumsum", "var", "native_layer_norm", "native_group_norm",
))  # fmt: skip
"""NaN of a row of -inf alone, of infinities that are multiplied by 0, and of those of both signs."""
_FINITE = frozenset((
    "exp", "sigmoid", "tanh", "softmax", "_softmax", "erf", "clamp", "hardtanh", "relu6", "hardsigmoid", "eq", "ne",
    "gt", "ge", "lt", "le", "isinf", "isnan", "isfinite", "argmax", "argmin", "sign", "nan_to_num", "atan",
    "_scaled_dot_product_flash_attention_for_cpu",
))  # fmt: skip
"""Operators after which an infinity, of softmax: one that is -inf, is none."""


class _Sign(IntEnum):
    """What is known of all numbers of a value but NaN; each includes those before."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2


_NONNEGATIVE = frozenset((
    "abs", "relu", "relu6", "hardsigmoid", "exp", "exp2", "sigmoid", "softmax", "_softmax", "softplus", "var", "std",
    "linalg_vector_norm", "norm", "one_hot", "zeros", "zeros_like", "new_zeros", "zero", "cosh", "eq", "ne", "gt", "ge",
    "lt", "le", "isinf", "isnan", "bitwise_not", "logical_not",
))  # fmt: skip
_POSITIVE = frozenset(("ones", "ones_like", "new_ones"))
_KEEP = frozenset((
    "alias", "view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
    "select", "clone", "contiguous", "flatten", "narrow", "split", "chunk", "unbind", "split_with_sizes", "repeat",
    "flip", "roll", "detach", "_to_copy", "to", "expand_as", "diagonal", "index", "gather", "index_select", "mean",
    "amax", "amin", "max", "min", "avg_pool2d", "_adaptive_avg_pool2d", "embedding", "sqrt", "rsqrt", "lift_fresh_copy",
))  # fmt: skip
"""Operators whose results are between numbers of their first argument, or above 0 as these are."""
_OF_ALL = frozenset((
    "add", "mul", "div", "sum", "cumsum", "prod", "scatter_add", "index_add", "scatter", "cat", "stack", "where",
    "masked_fill", "minimum", "pow", "log1p", "expm1", "mm", "bmm", "matmul", "clamp_max", "constant_pad_nd",
))  # fmt: skip
"""Operators whose results are at least 0 where all their tensors and numbers are."""


def lost_nan(module: fx.GraphModule, infinite: Collection[int], backend: str) -> str | None:
    """Return in words where `backend` may lose a NaN that a program makes of finite numbers; None: nowhere.

    `infinite` are the positions of arguments that may have infinities.
    """
    walk = _Walk(module, infinite)
    for node in walk.makers:
        seen, lost = _followed(node, LOSES[backend])
        if lost is not None and not seen:
            return f"{_name(node)} may make NaN, of which {lost} makes a number"
    return None


def _followed(maker: fx.Node, loses: Collection[str]) -> tuple[bool, str | None]:
    """Whether a NaN of `maker` surely comes to a result, and the name of an operator that may lose it.

    What an operator has written to is not followed as whole: what reads it later may read what was written.
    """
    lost, seen = None, False
    whole, pending = {maker: True}, [maker]
    while pending:
        node = pending.pop()
        keeps = whole[node] and not any(_written(user) is node for user in node.users)
        written = _written(node)
        for user in (*node.users, *(() if written is None else (written,))):
            if user.op == "output":
                seen = seen or keeps
                continue
            name = _name(user)
            if name in loses:
                lost = lost or name
            stays = keeps and user is not written and name not in loses and name not in _CUT
            if user not in whole or (stays and not whole[user]):
                whole[user] = stays
                pending.append(user)
    return seen, lost


def _written(node: fx.Node) -> fx.Node | None:
    """The value that an operator writes to, as `relu_` does; None where there is none."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return None
    for argument, value in zip(node.target._schema.arguments, node.args):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            return value
    return None


class _Walk:
    """What is known of each value of a program, and which nodes may make NaN of finite arguments."""

    def __init__(self, module: fx.GraphModule, infinite: Collection[int]) -> None:
        self._module = module
        self._signs: dict[fx.Node, _Sign] = {}
        self._varies: set[fx.Node] = set()
        """The values that depend on arguments."""
        self._infinite: set[fx.Node] = set()
        """Those that may have infinities in one call, and others, or none, in the next."""
        self.makers: list[fx.Node] = []
        arguments = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._infinite.update(node for at, node in enumerate(arguments) if at in infinite)
        for node in module.graph.nodes:
            self._take(node)

    def _take(self, node: fx.Node) -> None:
        if node.op == "placeholder" or any(one in self._varies for one in node.all_input_nodes):
            self._varies.add(node)
        if node.op == "get_attr":
            self._signs[node] = _sign_of(_attribute(self._module, str(node.target)))
        if node.op != "call_function":
            return
        name = _name(node)
        if node in self._varies and self._makes(node, name):
            self.makers.append(node)
        if node in self._varies and self._has_infinities(node, name):
            self._infinite.add(node)
        self._signs[node] = self._sign_after(node, name)

    def _makes(self, node: fx.Node, name: str) -> bool:
        """Whether an operator may make NaN of numbers that are none."""
        if name in _OTHERS:
            return True
        if name in _ROOTS or name == "rsqrt":
            return self._sign(node.args[0]) < _Sign.NONNEGATIVE
        if name == "pow":
            exponent = node.args[1]
            whole = isinstance(exponent, int | float) and float(exponent).is_integer()
            return not whole and self._sign(node.args[0]) < _Sign.NONNEGATIVE
        if name in _DIVIDE and not self._is_never_zero(node.args[1]):
            return True
        meets = name in _OF_INFINITIES and any(one in self._infinite for one in node.all_input_nodes)
        return meets and not _is_masked_again(node)

    def _is_never_zero(self, divisor: Any) -> bool:
        if isinstance(divisor, int | float):
            return divisor != 0
        if isinstance(divisor, fx.Node) and divisor.op == "get_attr":
            value = _attribute(self._module, str(divisor.target))
            return not isinstance(value, Tensor) or bool(value.ne(0).all())
        return self._sign(divisor) is _Sign.POSITIVE or divisor not in self._varies

    def _has_infinities(self, node: fx.Node, name: str) -> bool:
        """Whether a result may have infinities of which others are not known to be gone."""
        if name in ("log", "log2", "log10", "rsqrt", "reciprocal"):
            return self._sign(node.args[0]) is not _Sign.POSITIVE
        if name == "pow" and isinstance(node.args[1], int | float) and node.args[1] < 0:
            return self._sign(node.args[0]) is not _Sign.POSITIVE
        if name in ("masked_fill", "where"):
            if name == "masked_fill" and self._clears(node):
                return False
            filled = node.args[2] if name == "masked_fill" else node.args[1:]
            if node.args[int(name == "masked_fill")] in self._varies and self._is_infinite(filled):
                return True
        return name not in _FINITE and any(one in self._infinite for one in node.all_input_nodes)

    def _clears(self, node: fx.Node) -> bool:
        """Whether the infinities of a value are filled: `x.masked_fill(x == inf, 0)`."""
        value, mask = node.args[:2]
        return isinstance(mask, fx.Node) and _name(mask) in ("eq", "isinf") and mask.args[0] is value

    def _is_infinite(self, filled: Any) -> bool:
        if isinstance(filled, Sequence):
            return any(map(self._is_infinite, filled))
        if isinstance(filled, fx.Node):
            if filled.op == "get_attr":
                value = _attribute(self._module, str(filled.target))
                return isinstance(value, Tensor) and bool(value.isinf().any())
            return _name(filled) in ("scalar_tensor", "full", "full_like") and any(map(self._is_infinite, filled.args))
        return isinstance(filled, float) and math.isinf(filled)

    def _sign_after(self, node: fx.Node, name: str) -> _Sign:
        first: Any = node.args[0] if node.args else None
        if name in _POSITIVE:
            return _Sign.POSITIVE
        if name in ("full", "full_like", "scalar_tensor", "fill"):
            return self._sign(node.args[-1] if name != "scalar_tensor" else first)
        if name in _KEEP or node.target is operator.getitem:
            return self._sign(first)
        if name in ("clamp", "clamp_min", "maximum"):
            least = node.kwargs.get("min", node.args[1] if len(node.args) > 1 else None)
            return max(self._sign(first), _Sign.ANY if least is None else self._sign(least))
        if name in _NONNEGATIVE:
            return _Sign.NONNEGATIVE
        if (name == "pow" and node.args[1] in (2, 4)) or (name == "mul" and first is node.args[1]):
            return _Sign.NONNEGATIVE
        if name not in _OF_ALL or any(isinstance(one, int | float) and one < 0 for one in node.kwargs.values()):
            return _Sign.ANY
        parts = [*(first if isinstance(first, list | tuple) else [first]), *node.args[1:]]
        tensors = [one for one in parts if isinstance(one, fx.Node | int | float)]
        signs = [self._sign(one) for one in (tensors[:1] if name in ("sum", "cumsum", "prod") else tensors)]
        if name in ("scatter_add", "index_add", "scatter"):
            signs = [self._sign(first), self._sign(node.args[-1])]
        if name == "where":
            signs = signs[1:]
        if name == "masked_fill":
            signs = [signs[0], signs[2]]
        if name == "add":
            return max(signs) if min(signs) >= _Sign.NONNEGATIVE else _Sign.ANY
        positive = name in ("cat", "stack", "where", "masked_fill", "minimum", "clamp_max", "sum")
        return min(signs) if positive else min(min(signs), _Sign.NONNEGATIVE)

    def _sign(self, value: Any) -> _Sign:
        if isinstance(value, fx.Node):
            return self._signs.get(value, _Sign.ANY)
        return _sign_of(value)


def _is_masked_again(softmax: fx.Node) -> bool:
    """Whether what was masked before a soft-max, whose row may be NaN where it was all, is filled after it."""
    before: Any = softmax.args[0]
    if _name(before) != "masked_fill":
        return False
    return all(_name(user) == "masked_fill" and user.args[:2] == (softmax, before.args[1]) for user in softmax.users)


def _sign_of(value: Any) -> _Sign:
    if isinstance(value, Tensor):
        if not value.numel() or value.is_complex():
            return _Sign.ANY
        least: Any = value.min() if value.dtype is not torch.bool else 0
    else:
        least = value
    if not isinstance(least, Tensor | int | float) or not least >= 0:
        return _Sign.ANY
    return _Sign.POSITIVE if least > 0 else _Sign.NONNEGATIVE


def _attribute(module: fx.GraphModule, name: str) -> Any:
    return operator.attrgetter(name)(module)


def _name(node: Any) -> str:
    if not isinstance(node, fx.Node):
        return ""
    if node.kwargs.get("dtype") is torch.bool:
        return "bool"
    if isinstance(node.target, OpOverload):
        return str(node.target._schema.name).removeprefix("aten::").rstrip("_")
    return str(node.target)
