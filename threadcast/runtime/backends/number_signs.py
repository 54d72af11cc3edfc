"""What is known of the signs of a program's numbers, whatever its arguments are.

A logarithm or a root may make NaN of what may be negative, a quotient of what may be 0. `x * x + 1e-6` never is.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from threadcast.runtime.backends.least_and_most import ends


class Sign(IntEnum):
    """What is known of all numbers of a value that are not NaN; each includes those before."""

    ANY = 0
    NONNEGATIVE = 1
    POSITIVE = 2


VIEWS = frozenset((
    "alias", "view", "reshape", "_unsafe_view", "_reshape_alias", "expand", "permute", "transpose", "t", "squeeze",
    "unsqueeze", "clone", "contiguous", "flatten", "detach", "expand_as", "lift_fresh_copy",
))  # fmt: skip
"""Operators that return all numbers of their first argument, and no others."""
SELECT = frozenset((
    "slice", "select", "narrow", "split", "split_with_sizes", "unsafe_split", "chunk", "unbind", "repeat", "flip",
    "roll", "diagonal", "index", "gather", "index_select", "embedding", "unfold", "as_strided",
))  # fmt: skip
"""Operators that return some of them."""
FILLED = frozenset(
    ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)
"""Operators that take only shape and type of their first argument."""
_BETWEEN = VIEWS | SELECT | {
    "mean", "amax", "amin", "max", "min", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "sqrt", "sum", "topk",
    "sort", "max_pool2d_with_indices",
}  # fmt: skip
"""Operators whose results lie between numbers of their first argument, or are above 0 where these are."""
_NEVER_NEGATIVE = frozenset((
    "abs", "relu", "relu6", "hardsigmoid", "exp", "exp2", "sigmoid", "softmax", "_softmax", "var", "std", "var_mean",
    "std_mean", "linalg_vector_norm", "norm", "one_hot", "zeros", "zeros_like", "new_zeros", "zero", "cosh", "eq", "ne",
    "gt", "ge", "lt", "le", "isinf", "isnan", "logical_not",
))  # fmt: skip
_OF_ALL = frozenset(("mul", "div", "mm", "bmm", "matmul", "cumsum", "prod", "log1p", "expm1", "rsqrt", "reciprocal"))
"""Operators whose results are at least 0 where all their tensors and numbers are."""
_ADDING = frozenset(("scatter_add", "index_add", "scatter"))
FILL: Mapping[str, int] = {"full": 1, "full_like": 1, "fill": 1, "scalar_tensor": 0, "new_full": 2}
"""Operators that return one number, and its place among their arguments."""


SMALLEST, SMALLEST_HALF = 1.2e-38, 1e-7
"""Smaller numbers may be 0: in float32, and in float16."""


def sign_of(value: Any, smallest: float = SMALLEST) -> Sign:
    """What is known of a number of which what is below `smallest` may be 0."""
    if not isinstance(value, int | float) or not value >= 0:
        return Sign.ANY
    return Sign.POSITIVE if value >= smallest else Sign.NONNEGATIVE


class Signs:
    """The signs of a program's values, taken note of operator by operator, in their order.

    `constants` are the values that do not depend on arguments. `alike` returns the values in the memory of one that an
    operator writes to, of others itself: of these is known what all have in common, after a write to all of it
    (`overwrites`) what was written. With `half` there are numbers in float16.
    """

    def __init__(
        self, constants: Mapping[fx.Node, Any], alike: Callable[[fx.Node], Collection[fx.Node]], *,
        overwrites: Callable[[fx.Node], bool] = lambda _: False, half: bool = False,
    ) -> None:  # fmt: skip
        self._constants, self._alike, self._overwrites = constants, alike, overwrites
        self._smallest = SMALLEST_HALF if half else SMALLEST
        self._found: dict[fx.Node, Sign] = {}
        self._least: dict[fx.Node, float] = {}
        """The least number of each constant that was asked for."""

    def of(self, value: Any) -> Sign:
        """The sign of an operator's argument."""
        if not isinstance(value, fx.Node):
            return sign_of(value, self._smallest)
        if value in self._constants:
            return sign_of(self._least_of(value), self._smallest)
        return self._found.get(value, Sign.ANY)

    def _least_of(self, node: fx.Node) -> Any:
        constant = self._constants[node]
        if not isinstance(constant, Tensor):
            return constant
        if node not in self._least:
            self._least[node] = math.nan if constant.is_complex() else ends(constant)[0]
        return self._least[node]

    def take(self, node: fx.Node) -> None:
        """Take note of an operator."""
        alike = self._alike(node)
        given = any(one.op != "call_function" for one in alike)
        before = [] if self._overwrites(node) else [self._found[one] for one in alike if one in self._found]
        found = Sign.ANY if given else min([self._after(node, name_of(node)), *before])
        dtype = node.kwargs.get("dtype")
        if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
            found = min(found, Sign.NONNEGATIVE)  # what is below 1 is 0
        self._found.update({one: found for one in alike if one is node or one in self._found})

    def _after(self, node: fx.Node, name: str) -> Sign:
        args: Any = node.args
        first = args[0] if args else None
        if "scatter_reduce" in str(node.target):
            return min(self.of(first), self.of(args[3]), Sign.NONNEGATIVE)
        if name == "copy":
            return min(self.of(args[1]), Sign.NONNEGATIVE)
        if name in FILL:
            return self.of(args[FILL[name]]) if len(args) > FILL[name] else Sign.ANY
        if name in ("ones", "ones_like", "new_ones"):
            return Sign.POSITIVE
        if name in ("_to_copy", "to"):
            dtype = node.kwargs.get("dtype")
            return min(self.of(first), Sign.NONNEGATIVE) if dtype is torch.float16 else self.of(first)
        if name == "softplus" and len(args) == 1:
            return Sign.NONNEGATIVE
        if name == "constant_pad_nd":
            return min(self.of(first), self.of(args[2] if len(args) > 2 else 0))
        if node.target is operator.getitem:
            return self.of(first) if name_of(first) in SELECT or args[1] == 0 else Sign.ANY
        if name in _BETWEEN:
            return self.of(first)
        if name in ("clamp", "clamp_min", "clamp_max", "maximum", "minimum"):
            return self._limited(node, name)
        if name in _NEVER_NEGATIVE:
            return Sign.NONNEGATIVE
        if name == "pow":
            number = args[1] if isinstance(args[1], int | float) else None
            if number is not None and number % 2 == 0:
                return Sign.NONNEGATIVE
            return self.of(first) if number is not None and 0 < number <= 1 else min(self.of(first), Sign.NONNEGATIVE)
        if name == "mul" and first is args[1]:
            return Sign.NONNEGATIVE
        return self._of_several(node, name)

    def _limited(self, node: fx.Node, name: str) -> Sign:
        """The sign of numbers that others limit: from below, then from above."""
        given = dict(enumerate(node.args)) | {"min": node.kwargs.get("min"), "max": node.kwargs.get("max")}
        least = given["min"] if name == "clamp" and given.get(1) is None else given.get(1)
        most = given["max"] if given.get(2) is None else given.get(2)
        if name in ("clamp_max", "minimum"):
            least, most = None, given.get(1)
        found = self.of(node.args[0])
        if least is not None:
            found = max(found, self.of(least))
        return found if most is None else min(found, self.of(most))

    def _of_several(self, node: fx.Node, name: str) -> Sign:
        args: Any = node.args
        if name in ("cat", "stack"):
            return min(map(self.of, args[0]), default=Sign.ANY)
        if name == "where" and len(args) == 3:
            return min(self.of(args[1]), self.of(args[2]))
        if name in ("masked_fill", "index_put"):
            return min(self.of(args[0]), self.of(args[2]))
        if name == "add":
            alpha = node.kwargs.get("alpha", args[2] if len(args) > 2 else 1)
            signs = [self.of(args[0]), self.of(args[1])]
            if min(signs) is Sign.ANY or not isinstance(alpha, int | float) or alpha < 0:
                return Sign.ANY
            return max(signs) if alpha == 1 else max(signs[0], Sign.NONNEGATIVE)
        if name in _ADDING:
            return min(self.of(args[0]), self.of(args[-1]), Sign.NONNEGATIVE) if not node.kwargs else Sign.ANY
        if name not in _OF_ALL or node.kwargs.keys() - {"dtype"}:
            return Sign.ANY
        of = args[:1] if name in ("cumsum", "prod") else args
        return min(*map(self.of, of), Sign.NONNEGATIVE)


def operator_of(node: fx.Node) -> str:
    """The name of a node's operator, without the mark of those that write to their argument."""
    if not isinstance(node.target, OpOverload):
        return str(node.target)
    return str(node.target._schema.name).removeprefix("aten::").rstrip("_")


def name_of(node: Any) -> str:
    """The same, but "bool" for a conversion to true and false, "amax" for the largest number's norm; "" of others."""
    if not isinstance(node, fx.Node):
        return ""
    if node.kwargs.get("dtype") is torch.bool:
        return "bool"
    name = operator_of(node)
    of_largest = name == "linalg_vector_norm" and len(node.args) > 1 and node.args[1] in (torch.inf, -torch.inf)
    of_largest = of_largest or (name == "scatter_reduce" and node.args[-1] in ("amax", "amin"))
    return "amax" if of_largest else name
