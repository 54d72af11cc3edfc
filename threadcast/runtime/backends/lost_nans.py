"""Where a backend may lose a NaN that arises inside a program from finite numbers.

`NumberGuard` sees NaN in arguments and results. In between, backends make another number of it at some operators, which
`library_facts` knows: the maximum of NaN and 0 is 0 in OpenVINO. PyTorch's result is NaN then, and theirs a number,
which nothing shows. So each operator that may make NaN is followed: it is harmless where it comes to no such operator,
and where its NaN surely comes to a result on some way. Infinities that arise inside are followed to operators that make
something else of them.

Exponentials may be too large for their type, which takes arguments of 89; not followed are other numbers that are.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from threadcast.runtime.backends.least_and_most import ends
from threadcast.runtime.backends.library_facts import Facts
from threadcast.runtime.backends.memory_of_values import Memories
from threadcast.runtime.backends.number_signs import FILL, FILLED, SELECT, SMALLEST, VIEWS, Sign, Signs, name_of

_EXTREMES = frozenset((
    "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "sign", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d",
))  # fmt: skip
_LIMITS = frozenset(("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max"))
_PRODUCTS = frozenset(("mul", "mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "convolution"))
_SOFTMAX = frozenset(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"))
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_EACH = frozenset((
    "neg", "abs", "add", "sub", "rsub", "mul", "div", "sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p",
    "exp", "exp2", "expm1", "sigmoid", "tanh", "erf", "gelu", "silu", "hardswish", "mish", "softplus", "elu", "celu",
    "leaky_relu", "sin", "cos", "maximum", "minimum", "hardsigmoid",
)) | _LIMITS  # fmt: skip
"""Operators that compute each number by itself, NaN of NaN."""
_ALL = _SOFTMAX | frozenset((
    "mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "sum", "mean", "cat", "stack", "native_layer_norm",
    "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training", "amax", "amin", "logsumexp",
))  # fmt: skip
"""Operators that leave out no number: each NaN comes to a result."""

_ROOTS = frozenset(("log", "log2", "log10", "log1p", "sqrt", "rsqrt"))
"""NaN of what is negative."""
_OTHERS = frozenset((
    "acos", "asin", "acosh", "atanh", "logit", "lgamma", "digamma", "polygamma", "erfinv", "xlogy", "igamma", "igammac",
    "addcdiv", "fmod", "remainder", "atan2", "float_power", "logcumsumexp", "cumprod", "renorm", "cdist",
))  # fmt: skip
"""NaN of some numbers, which are not followed here, as are all operators `special_...` and `linalg_...`."""
_NEVER = frozenset(("linalg_vector_norm", "linalg_cross", "special_erf", "special_expit"))
_EPS: Mapping[str, int] = {"native_layer_norm": 4, "native_group_norm": 7}
"""Operators that divide by what is 0 of equal numbers, but for what is added: at this place among their arguments."""

_TAKE_INFINITIES = VIEWS | SELECT | FILLED | _EXTREMES | _LIMITS | frozenset((
    "abs", "neg", "exp", "exp2", "sigmoid", "tanh", "erf", "hardsigmoid", "maximum", "minimum", "topk", "sort",
    "argsort", "where", "masked_fill", "cat", "stack", "eq", "ne", "gt", "ge", "lt", "le", "isinf", "isnan", "isfinite",
    "nan_to_num", "atan", "sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "softplus", "elu",
    "leaky_relu", "pow", "logical_not", "logical_and", "logical_or", "logical_xor", "bool", "_to_copy", "to", "copy",
    "index_fill", "fill", "_safe_softmax",
    "round", "floor", "ceil", "scatter", "index_put", "slice_scatter", "select_scatter", "constant_pad_nd",
    "<built-in function getitem>",
))  # fmt: skip
"""Operators that make no NaN of infinities alone."""
_LOGS = frozenset(("log", "log2", "log10", "log1p"))
"""Operators whose infinities are below 0."""
_KEEP_SIGNS = VIEWS | SELECT | FILLED | _SOFTMAX | _LIMITS | _LOGS | frozenset((
    "add", "where", "masked_fill", "cat", "stack", "copy", "_to_copy", "to", "exp", "sigmoid", "maximum", "minimum",
    "amax", "amin", "max", "min", "logsumexp", "scatter", "index_put", "constant_pad_nd", "sum", "mean",
    "<built-in function getitem>", _ATTENTION,
))  # fmt: skip
"""Operators that make no infinity above 0 of one below."""
_TAKE_ONE = frozenset(("add", "sub", "rsub", "div"))
"""Those that make none of one argument's."""
_FINITE = _SOFTMAX - {"log_softmax", "_log_softmax"} | frozenset((
    "sigmoid", "tanh", "erf", "relu6", "hardsigmoid", "eq", "ne", "gt", "ge", "lt", "le", "isinf", "isnan",
    "isfinite", "argmax", "argmin", "sign", "atan", "bool", "zeros_like", "ones_like", "new_zeros",
    "new_ones", "zero", _ATTENTION,
))  # fmt: skip
"""Operators whose results have no infinities."""
_QUOTIENTS = frozenset(("div", "floor_divide"))
_EXPONENTIALS = frozenset(("exp", "exp2", "expm1", "sinh", "cosh"))
_BOUNDED = _FINITE | frozenset((
    "log_softmax", "_log_softmax", "log_sigmoid_forward", "sin", "cos", "hardtanh", "clamp", "clamp_max", "minimum",
))  # fmt: skip
"""Operators by which no ordinary number becomes one of which the exponential is infinite."""
_PARTS = SELECT | {"<built-in function getitem>"}
"""Operators whose results may lie in a part of their argument's memory."""
_CHOOSE: Mapping[str, int] = {
    "where": 0, "masked_fill": 1, "masked_scatter": 1, "index": 1, "index_put": 1, "embedding": 1, "take": 1,
    "gather": 2, "index_select": 2, "scatter": 2, "index_fill": 2, "index_copy": 2,
}  # fmt: skip
"""Operators that choose which numbers are where, and the place of what they choose by among their arguments."""


class NansInside:
    """Which operators of a program may make NaN of finite arguments, and where that may come to.

    `infinite` are the positions of arguments that may have infinities, `results` what the program returns.
    """

    def __init__(self, module: fx.GraphModule, infinite: Collection[int], results: Sequence[Tensor]) -> None:
        self._module = module
        self._shown = [one.is_floating_point() or one.is_complex() for one in results]
        """Whether each result is looked at."""
        nodes = list(module.graph.nodes)
        memories = Memories(nodes)
        self._written, self._alike = memories.written, memories.alike
        arguments = [node for node in nodes if node.op == "placeholder"]
        self._varies = {one for node in arguments for one in self._alike(node)}
        """The values that depend on arguments."""
        self._infinite = {one for at, node in enumerate(arguments) if at in infinite for one in self._alike(node)}
        """Those that may have infinities in one call, and others, or none, in the next."""
        self._always: set[fx.Node] = set()
        """Those that have infinities in each call, at the same places."""
        self._constants: dict[fx.Node, Any] = {}
        half = any(one.dtype is torch.float16 for one in (*results, *module.buffers(), *module.parameters()))
        half = half or any(node.kwargs.get("dtype") is torch.float16 for node in nodes)
        self._signs = Signs(self._constants, self._alike, overwrites=self._overwrites, half=half)
        self.makers: list[fx.Node] = []
        self._takers: list[fx.Node] = []
        """The operators that may take infinities."""
        self._high = set(self._infinite)
        """The values whose infinities, if they have some, may be above 0."""
        for node in nodes:
            self._take(node)

    def lost_by(self, facts: Facts, fused: Collection[str] = ()) -> str | None:
        """Return in words where a backend may lose a NaN that the program makes of finite numbers; None: nowhere.

        `fused` are the operators that lose one beside what its facts say, because it fuses them with others.
        """
        for node in self._takers:
            high = not self._high.isdisjoint(node.all_input_nodes)
            if facts.differs(name_of(node), *(("inf", "-inf") if high else ("-inf",))):
                return f"{name_of(node)} makes something else of infinities there"
        for node in self.makers:
            seen, lost = self._followed(node, facts, fused)
            if lost is not None and not seen:
                return f"{name_of(node)} may make NaN, of which {lost} makes a number"
        return None

    def _followed(self, maker: fx.Node, facts: Facts, fused: Collection[str]) -> tuple[bool, str | None]:
        """Whether a NaN of `maker` surely comes to a result that is looked at, and an operator that may lose it."""
        lost, seen = None, False
        whole: dict[fx.Node, bool] = {}
        pending = [(maker, True)]
        while pending:
            node, keeps = pending.pop()
            if node in whole and whole[node] >= keeps:
                continue
            whole[node] = keeps
            if node in self._written:  # what reads it may do so before or after a write
                keeps = False
                pending.extend((one, False) for one in self._alike(node) if one not in whole)
            for user in node.users:
                if user.op == "output":
                    seen = seen or (keeps and any(self._shown[at] for at in _places(user, node)))
                    continue
                name = name_of(user)
                if name in FILLED:
                    continue
                loses = name in fused or facts.differs(name, "nan")
                if loses:
                    lost = lost or name
                pending.append((user, keeps and not loses and _keeps(user, name)))
        return seen, lost

    def _overwrites(self, node: fx.Node) -> bool:
        """Whether an operator writes to all numbers of the memory of its first argument."""
        if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable or not node.args:
            return False
        value: Any = node.args[0]
        while name_of(value) in VIEWS:
            value = value.args[0]
        return isinstance(value, fx.Node) and value.op == "call_function" and name_of(value) not in _PARTS

    def _take(self, node: fx.Node) -> None:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self._module)
            if self._is_infinite(value):
                self._always.update(self._alike(node))
            if node not in self._written:
                self._constants[node] = value
            return
        if node.op != "call_function":
            return
        name = name_of(node)
        if not any(one in self._varies for one in node.all_input_nodes):
            self._take_constant(node, name)
            return
        self._varies.update(self._alike(node))
        if self._makes(node, name):
            self.makers.append(node)
        self._take_infinities(node, name)
        if self._has_infinities(node, name):
            self._infinite.update(self._alike(node))
        elif name == "masked_fill" and self._overwrites(node):
            self._infinite.difference_update(self._alike(node))  # they are filled
        if self._is_always(node, name):
            self._always.update(self._alike(node))
        self._signs.take(node)

    def _take_infinities(self, node: fx.Node, name: str) -> None:
        """Take note of an operator that may take infinities, and of whether its result's may be above 0."""
        of = node.all_input_nodes if name != _ATTENTION else node.all_input_nodes[:3]
        taken = any(one in self._infinite or one in self._always for one in of)
        if taken:
            self._takers.append(node)
        turned = name not in _KEEP_SIGNS and (taken or self._has_infinities(node, name))
        given = [one for one in (*node.args, *of) if self._is_infinite(one, torch.inf)]
        self._high.update(one for one in given if isinstance(one, fx.Node))
        if turned or given or not self._high.isdisjoint(of):
            self._high.update(self._alike(node))

    def _take_constant(self, node: fx.Node, name: str) -> None:
        """Compute a value that is the same in each call; of one that an operator writes to only what is known of it."""
        if node in self._written or any(one not in self._constants for one in node.all_input_nodes):
            if self._is_always(node, name):
                self._always.update(self._alike(node))
            self._signs.take(node)
            return
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._constants.__getitem__)
        with torch.no_grad():
            self._constants[node] = value = node.target(*args, **kwargs)  # type: ignore[operator]
        if self._is_infinite(value):
            self._always.add(node)

    def _is_always(self, node: fx.Node, name: str) -> bool:
        """Whether a result has infinities in each call."""
        if name in FILL and len(node.args) > FILL[name] and self._is_infinite(node.args[FILL[name]]):
            return True
        return name not in _FINITE and name not in FILLED and any(one in self._always for one in node.all_input_nodes)

    def _makes(self, node: fx.Node, name: str) -> bool:
        """Whether an operator may make NaN of numbers that are none."""
        args: Any = node.args
        if name in _OTHERS or (name.startswith(("special_", "linalg_")) and name not in _NEVER):
            return True
        if name in _ROOTS and self._signs.of(args[0]) is Sign.ANY:
            return True
        if name == "pow" and self._signs.of(args[0]) is Sign.ANY:
            return not (isinstance(args[1], int | float) and float(args[1]).is_integer())
        if name in _QUOTIENTS and not self._is_never_zero(args[1]) and not self._is_never_zero(args[0]):
            return True
        if name in _EPS and (len(args) <= _EPS[name] or not args[_EPS[name]] > SMALLEST):
            return True
        if "batch_norm" in name and any(one in self._varies for one in args[4:5]):
            return True  # a variance that is an argument may be negative
        if name.startswith("_foreach"):
            return True
        if name in _PRODUCTS and any(one in self._always for one in node.all_input_nodes):
            return not self._is_scaled(node, name)
        of = node.all_input_nodes if name != _ATTENTION else args[:3]  # its mask may
        infinite = sum(one in self._infinite for one in of)
        if not infinite or (name in _TAKE_INFINITIES and not _adds(node, name)) or self._is_scaled(node, name):
            return False
        if name in _TAKE_ONE and node.kwargs.get("rounding_mode") is None:
            return infinite > 1 or args[0] is args[1]
        return not self._is_masked_again(node, name)

    def _is_scaled(self, node: fx.Node, name: str) -> bool:
        """Whether an operator multiplies by a number that is not 0."""
        return name == "mul" and isinstance(node.args[1], int | float) and node.args[1] != 0

    def _is_never_zero(self, value: Any) -> bool:
        constant = self._constants.get(value) if isinstance(value, fx.Node) else value
        if isinstance(constant, Tensor):
            return bool(constant.ne(0).all())
        if isinstance(constant, int | float):
            return constant != 0
        return self._signs.of(value) is Sign.POSITIVE

    def _is_masked_again(self, softmax: fx.Node, name: str) -> bool:
        """Whether what was masked before a soft-max, whose row may be NaN where it was all, is filled after it."""
        masked: Any = softmax.args[0]
        if name not in _SOFTMAX or name_of(masked) != "masked_fill":
            return False
        value, mask, filled = masked.args
        filled = self._constants.get(filled, filled)
        if value in self._infinite | self._always or isinstance(filled, fx.Node) or float(filled) != -torch.inf:
            return False
        return all(name_of(one) == "masked_fill" and one.args[:2] == (softmax, mask) for one in softmax.users)

    def _has_infinities(self, node: fx.Node, name: str) -> bool:
        """Whether a result may have infinities that are not in each call."""
        args: Any = node.args
        if name in ("log", "log2", "log10", "rsqrt", "reciprocal"):
            return self._signs.of(args[0]) is not Sign.POSITIVE
        if name == "log1p" and self._signs.of(args[0]) is Sign.ANY:
            return True
        if name == "pow" and not (isinstance(args[1], int | float) and args[1] >= 0):
            return self._signs.of(args[0]) is not Sign.POSITIVE
        if (name in _QUOTIENTS and not self._is_never_zero(args[1])) or name in _OTHERS:
            return True
        if name in _EXPONENTIALS and not self._is_bounded(args[0]):
            return True
        if name in _CHOOSE and len(args) > _CHOOSE[name]:
            if self._chooses(args[_CHOOSE[name]]) and any(map(self._is_infinite, args)):
                return True
            if self._clears(node, name):
                return False
        return name not in _FINITE and any(one in self._infinite for one in node.all_input_nodes)

    def _is_bounded(self, value: Any) -> bool:
        """Whether a number is surely not so large that its exponential is infinite."""
        name = name_of(value)
        args: Any = getattr(value, "args", ())
        if name in VIEWS | SELECT:
            return self._is_bounded(args[0])
        if name == "neg":
            return self._signs.of(args[0]) is not Sign.ANY
        if name == "mul" and isinstance(args[1], int | float):
            return args[1] < 0 and self._signs.of(args[0]) is not Sign.ANY
        if name != "sub":
            return name in _BOUNDED or value not in self._varies
        most = args[1]  # a soft-max that is written out
        while name_of(most) in VIEWS | SELECT | {"<built-in function getitem>"}:
            most = most.args[0]
        return name_of(most) in ("amax", "max", "logsumexp") and args[0] in most.all_input_nodes

    def _chooses(self, by: Any) -> bool:
        """Whether what an operator chooses by is another in other calls."""
        return any(one in self._varies for one in (by if isinstance(by, list | tuple) else (by,)))

    def _is_infinite(self, filled: Any, *which: float) -> bool:
        """Whether a value has infinities in each call; of constants, whether these ones (by default: any)."""
        filled = self._constants.get(filled, filled) if which and isinstance(filled, fx.Node) else filled
        if isinstance(filled, fx.Node):
            return filled in self._always and not which
        found = ends(filled) if isinstance(filled, Tensor) else (filled,)
        return any(one in found for one in which or (torch.inf, -torch.inf))

    def _clears(self, node: fx.Node, name: str) -> bool:
        """Whether infinities are filled: `x.masked_fill(x == inf, 0)`, `where(x > 0, x.rsqrt(), 0)`."""
        args: Any = node.args
        if name not in ("masked_fill", "where") or len(args) != 3:
            return False
        if name == "masked_fill":
            value, mask, _ = args
            return (name_of(mask) == "isinf" and mask.args[0] is value) or self._are_infinities_of(mask, value)
        mask, value, other = args
        return (
            name_of(mask) in ("gt", "ne")
            and mask.args[1] == 0
            and name_of(value) in ("rsqrt", "reciprocal", "pow", "log", "log2", "log10")
            and value.args[0] is mask.args[0]
            and not {mask.args[0], other} & self._infinite
        )

    def _are_infinities_of(self, mask: Any, value: Any) -> bool:
        """Whether `mask` says where `value`, which is nowhere negative, is infinite."""
        if name_of(mask) != "eq" or mask.args[0] is not value or self._signs.of(value) is Sign.ANY:
            return False
        number = self._constants.get(mask.args[1], mask.args[1])
        return bool((number == torch.inf).all()) if isinstance(number, Tensor) else number == torch.inf


def _keeps(node: fx.Node, name: str) -> bool:
    """Whether a NaN among an operator's arguments surely comes to its results."""
    args: Any = node.args
    dtype = node.kwargs.get("dtype")
    if (isinstance(dtype, torch.dtype) and not dtype.is_floating_point) or node.kwargs.get("beta", 1) == 0:
        return False
    if name == "pow":
        return isinstance(args[1], int | float) and args[1] != 0
    if name in ("_to_copy", "to"):
        return dtype is None or isinstance(dtype, torch.dtype)
    if node.target is operator.getitem:
        return name_of(args[0]).startswith("native_") and args[1] == 0
    return name in VIEWS or name in _EACH or name in _ALL


def _adds(node: fx.Node, name: str) -> bool:
    """Whether an operator that puts numbers somewhere adds them to those that are there, or multiplies these."""
    return (name == "index_put" and True in node.args[3:]) or (name == "scatter" and "reduce" in node.kwargs)


def _places(output: fx.Node, node: fx.Node) -> list[int]:
    """At which places among the results a value is."""
    found: Any = output.args[0]
    return [at for at, one in enumerate(found if isinstance(found, list | tuple) else (found,)) if one is node]
