"""Operators that a backend computes with fewer right digits than PyTorch, for numbers that the example may not have.

Some lose them by themselves: the logarithm of 1 + x is 0 of a small x where it is computed as that. Others have digits
enough, unless what follows depends on the last one, or on small numbers: a quotient is rounded down to a bin, a
probability is divided by the sum of probabilities that are all small.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from threadcast.runtime.backends.memory_of_values import sharing
from threadcast.runtime.backends.number_signs import SELECT, VIEWS, name_of
from threadcast.runtime.backends.onnx_forms import is_power_of_two

_SMALL = frozenset(("log1p", "expm1", "special_log1p", "special_expm1", "log_sigmoid_forward"))
"""Computed as log(1 + x), exp(x) - 1 and log(sigmoid(x)): 0 of what is near 0, or far from it."""
_SOFTPLUS = frozenset(("softplus", "mish"))
"""OpenVINO's softplus is 1 % off at -10, 0 at -15 and negative below."""
ROUGH: Mapping[str, frozenset[str]] = {
    "onnxruntime": _SMALL,
    "openvino": _SMALL | _SOFTPLUS,
    "torch.compile": frozenset(),
}  # fmt: skip
"""By backend, operators that lose digits by themselves: ONNX Runtime 1.32, OpenVINO 2026.4. Found by running each."""

_ORDERS = frozenset(("topk", "sort", "argsort"))
"""Which of several equal numbers comes first is another one in ONNX Runtime and OpenVINO."""
_ERF = frozenset(("erf", "special_erf"))
_SIGMOID = frozenset(("sigmoid", "special_expit"))
_HALVES = (torch.float16, torch.bfloat16)

_SAME = VIEWS | SELECT | frozenset((
    "cat", "stack", "where", "masked_fill", "relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "neg",
    "abs", "maximum", "minimum", "amax", "amin", "constant_pad_nd", "copy", "index_put", "scatter",
    "<built-in function getitem>",
))  # fmt: skip
"""Operators that return their arguments' numbers, some of them, or the same with another sign."""
_SUMS = frozenset(("sum", "mean", "cumsum", "add", "sub", "rsub"))
_SCALES = frozenset(("mul", "div"))
_JUMPS = frozenset((
    "floor", "ceil", "trunc", "round", "frac", "fix", "eq", "ne", "gt", "ge", "lt", "le", "floor_divide", "remainder",
    "fmod", "bucketize", "searchsorted", "argmax", "argmin", "sign", "bool",
))  # fmt: skip
"""Operators whose results jump where a number changes by its last digit."""
_TELLING = _ORDERS | frozenset((
    "log", "log2", "log10", "log1p", "logit", "sqrt", "rsqrt", "reciprocal", "pow", "argmax", "argmin", "max", "min",
    "native_layer_norm", "native_group_norm",
))  # fmt: skip
"""Operators whose results depend on how small numbers near 0 are, one beside the other."""


def roughly_computed(module: fx.GraphModule, backend: str, *, rough: bool = False) -> str | None:
    """Return in words what `backend` computes with too few right digits for some arguments; None: nothing.

    `rough`: the program computes in bfloat16, and roundings to half precision may be left out.
    """
    program = _Program(module)
    for node in program.varying:
        if not rough and backend != "onnxruntime" and _rounds(node):
            return "rounding to half precision and back is left out there"
        why = next(_reasons(program, node, name_of(node), backend), None)
        if why is not None:
            return why
    return None


def _reasons(program: _Program, node: fx.Node, name: str, backend: str) -> Iterator[str]:
    if name in ROUGH[backend]:
        yield f"{name} has too few digits there for some numbers"
    if name in _ERF and backend != "onnxruntime" and not all(_adds_number(one) for one in node.users):
        yield f"{name} has too few digits there for small numbers"
    if backend == "torch.compile":
        return
    if name in _ORDERS and _uses_positions(node, name):
        yield f"{name} puts equal numbers in another order there"
    if backend == "onnxruntime":
        if name in _SIGMOID and (found := program.comes_to(node, _depends_on_small)) is not None:
            yield f"{name} has no digits there below -17, and {found} depends on them"
        return
    if name == "log" and _adds_number(node.args[0]) and any(name_of(one) == "exp" for one in node.args[0].args):  # type: ignore[union-attr]
        yield "the logarithm of 1 + exp(x) has too few digits there for some numbers"
    if name == "div" and not program.is_exact_divisor(node):
        found = name if node.kwargs.get("rounding_mode") else program.comes_to(node, _jumps)
        if found is not None:
            yield f"quotients are rounded otherwise there, and {found} jumps"


class _Program:
    """A program's values that depend on its arguments, and what comes of them."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._together, self._written = sharing(list(module.graph.nodes))
        self.varying: dict[fx.Node, None] = {}
        """Those that operators return, in their order."""
        for node in module.graph.nodes:
            if node.op == "call_function" and any(map(self.varies, node.all_input_nodes)):
                self.varying[node] = None

    def comes_to(self, node: fx.Node, depends: Callable[[_Program, fx.Node, fx.Node], bool]) -> str | None:
        """Return the name of an operator that depends on the digits of `node`, after others that keep them."""
        pending, seen = [node], {node}
        while pending:
            value = pending.pop()
            alike = [one for one in self._together[value] if one not in seen] if value in self._written else []
            seen.update(alike)
            pending += alike
            for user in value.users:
                if user.op != "call_function":
                    continue
                if depends(self, user, value):
                    return name_of(user)
                if user not in seen and self._keeps(user, value):
                    seen.add(user)
                    pending.append(user)
        return None

    def varies(self, argument: Any) -> bool:
        """Whether an operator's argument depends on the program's arguments."""
        return isinstance(argument, fx.Node) and (argument in self.varying or argument.op == "placeholder")

    def is_exact_divisor(self, node: fx.Node) -> bool:
        """Whether a quotient is as exact by multiplication: by powers of two; or whether it stays a quotient."""
        divisor: Any = node.args[1]
        if self.varies(divisor) or is_power_of_two(divisor):
            return True
        if not isinstance(divisor, fx.Node) or divisor.op != "get_attr":
            return False
        constant = operator.attrgetter(str(divisor.target))(self._module)
        if not isinstance(constant, Tensor) or not constant.is_floating_point():
            return False
        mantissas: Tensor = torch.frexp(constant.detach().float()).mantissa
        return bool(mantissas.abs().eq(0.5).all())

    def _keeps(self, user: fx.Node, value: fx.Node) -> bool:
        """Whether an operator's results have the digits of `value`, and no others are added that vary."""
        name = name_of(user)
        if name in ("_to_copy", "to") or name in _SAME:
            return True
        others = [one for one in user.args[:2] if one is not value]
        return name in _SUMS | _SCALES and not any(map(self.varies, others))


def _depends_on_small(program: _Program, user: fx.Node, value: fx.Node) -> bool:
    """Whether it matters how small a number is that is near 0: to logarithms, and to quotients of two that vary."""
    if name_of(user) in _TELLING:
        return True
    return name_of(user) in ("div", "floor_divide") and program.varies(user.args[1])


def _jumps(_: _Program, user: fx.Node, value: fx.Node) -> bool:
    name, dtype = name_of(user), user.kwargs.get("dtype")
    if name == "div":
        return user.kwargs.get("rounding_mode") is not None
    return name in _JUMPS or (isinstance(dtype, torch.dtype) and not dtype.is_floating_point)


def _rounds(node: fx.Node) -> bool:
    """Whether a number is rounded to half precision, and in single precision again after that."""
    if node.kwargs.get("dtype") not in _HALVES or name_of(node) not in ("_to_copy", "to"):
        return False
    return any(
        name_of(one) in ("_to_copy", "to") and one.kwargs.get("dtype") in (torch.float32, torch.float64)
        for one in _after_views(node)
    )


def _after_views(node: fx.Node) -> Collection[fx.Node]:
    """What takes a value, or a view of it."""
    found: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found[user] = None
                pending += [user] if name_of(user) in VIEWS else []
    return found


def _adds_number(node: Any) -> bool:
    """Whether an operator adds a number to a value."""
    numbers = [one for one in node.args if isinstance(one, int | float)] if isinstance(node, fx.Node) else []
    return name_of(node) in ("add", "rsub", "sub") and any(one != 0 and not math.isnan(one) for one in numbers)


def _uses_positions(node: fx.Node, name: str) -> bool:
    """Whether anything takes the positions that an operator returns, beside values."""
    if name == "argsort":
        return True
    return any(one.target is not operator.getitem or one.args[1] != 0 for one in node.users)
