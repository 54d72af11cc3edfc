"""Operators that a backend computes with fewer right digits than PyTorch, for numbers that the example may not have.

Some lose them by themselves: the logarithm of 1 + x is 0 of a small x where it is computed as that. Others have digits
enough, unless what follows depends on the last one, or on small numbers: a quotient is rounded down to a bin, a
probability is divided by the sum of probabilities that are all small.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from threadcast.runtime.backends.library_facts import Facts
from threadcast.runtime.backends.memory_of_values import Memories
from threadcast.runtime.backends.number_signs import SELECT, VIEWS, name_of
from threadcast.runtime.backends.onnx_forms import is_power_of_two

_RIGHT_ENOUGH = frozenset(("gelu", "silu", "elu", "celu", "sigmoid", "special_expit", "erf", "special_erf"))
"""Operators whose small results may have few digits, unless what follows depends on these."""
_BY_QUOTIENT = frozenset(("remainder", "fmod"))
"""Operators of which `onnx_forms` knows for which divisors they are right."""

_ORDERS = frozenset(("topk", "sort", "argsort"))
"""Operators by which one of several equal numbers comes first."""
_ERF = frozenset(("erf", "special_erf"))
_SIGMOID = frozenset(("sigmoid", "special_expit"))
_HALVES = (torch.float16, torch.bfloat16)

_SAME = VIEWS | SELECT | frozenset((
    "cat", "stack", "where", "masked_fill", "relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "neg",
    "abs", "maximum", "minimum", "amax", "amin", "max", "min", "topk", "sort", "constant_pad_nd", "copy", "index_put",
    "scatter", "<built-in function getitem>",
))  # fmt: skip
"""Operators that return their arguments' numbers, some of them, or the same with another sign."""
_SUMS = frozenset(("sum", "mean", "cumsum", "add", "sub", "rsub"))
_SCALES = frozenset(("mul", "div"))
_JUMPS = frozenset((
    "floor", "ceil", "trunc", "round", "frac", "fix", "eq", "ne", "gt", "ge", "lt", "le", "floor_divide", "remainder",
    "fmod", "bucketize", "searchsorted", "sign", "sgn", "heaviside", "isclose", "bool",
))  # fmt: skip
"""Operators whose results jump where a number changes by its last digit."""
_TELLING = frozenset((
    "log", "log2", "log10", "log1p", "logit", "sqrt", "rsqrt", "reciprocal", "argmax", "argmin", "native_layer_norm",
    "native_group_norm",
))  # fmt: skip
"""Operators whose results depend on how small numbers near 0 are, one beside the other."""
_WITH_POSITIONS = _ORDERS | {"max", "min"}
_LOGS = frozenset(("log2", "log10"))
"""Operators that some compute as quotients of natural logarithms."""
_ORDINARY = 1e-3
"""From so much on, a number that is added to one near 0 hides how small it is."""


class RoughForms:
    """What backends compute of a program with too few right digits for some arguments.

    `rough`: the program computes in bfloat16, and roundings to half precision may be left out.
    """

    def __init__(self, module: fx.GraphModule, *, rough: bool = False) -> None:
        self._program, self._rough = _Program(module), rough

    def computed_by(self, facts: Facts) -> str | None:
        """Return in words what a backend of which `facts` hold computes in that way; None: nothing."""
        for node in self._program.varying:
            if not self._rough and _rounds(node) and facts.differs("rounding", "digits"):
                return "rounding to half precision and back is left out there"
            why = next(_reasons(self._program, node, name_of(node), facts), None)
            if why is not None:
                return why
        return None


def _reasons(program: _Program, node: fx.Node, name: str, facts: Facts) -> Iterator[str]:
    asked = "scatter_reduce mean" if name == "scatter_reduce" and "mean" in node.args else name
    small = facts.differs(name, "small")
    if asked not in _BY_QUOTIENT and (facts.differs(asked, "digits") or (small and asked not in _RIGHT_ENOUGH)):
        yield f"{name} has too few digits there for some numbers"
    if name in _ERF and small and not all(_adds_number(one) for one in node.users):
        yield f"{name} has too few digits there for small numbers"
    if name in _ORDERS and _uses_positions(node, name) and facts.differs(f"{name} positions", "digits"):
        yield f"{name} puts equal numbers in another order there"
    if name in _SIGMOID and small and (found := program.comes_to(node, _depends_on_small, small=True)) is not None:
        yield f"{name} has no digits there of small numbers, and {found} depends on them"
    if name == "log" and _is_softplus(node.args[0]) and facts.differs("log of 1 + exp", "digits", "small"):
        yield "the logarithm of 1 + exp(x) has too few digits there for some numbers"
    if name in _LOGS and facts.differs(name, "exact") and (found := program.comes_to(node, _jumps)) is not None:
        yield f"{name} is a quotient of logarithms there, and {found} jumps"
    if name == "div" and facts.differs(name, "exact") and not program.is_exact_divisor(node):
        found = name if node.kwargs.get("rounding_mode") else program.comes_to(node, _jumps)
        if found is not None:
            yield f"quotients are rounded otherwise there, and {found} jumps"


class _Program:
    """A program's values that depend on its arguments, and what comes of them."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._memories = Memories(list(module.graph.nodes))
        self._dependent: set[fx.Node] = set()
        self.varying: list[fx.Node] = []
        """What operators return that depends on the program's arguments, in its order."""
        for node in module.graph.nodes:
            if node.op == "call_function" and any(one in self._dependent for one in node.all_input_nodes):
                self.varying.append(node)
            elif node.op != "placeholder":
                continue
            self._dependent.update(self._memories.alike(node))

    def comes_to(
        self, node: fx.Node, depends: Callable[[Collection[fx.Node], fx.Node, fx.Node], bool], *, small: bool = False
    ) -> str | None:
        """Return the name of an operator that depends on the digits of `node`, after others that keep them.

        `depends` is asked of all values that have these digits, an operator, and the one of them that it takes. With
        `small` a number of ordinary size that is added ends that.
        """
        pending, reached = [node], dict[fx.Node, None]()
        while pending:
            value = pending.pop()
            if value in reached:
                continue
            reached[value] = None
            pending += self._memories.alike(value)
            pending += [user for user in value.users if self._keeps(user, value, small=small)]
        for value in reached:
            for user in value.users:
                if user.op == "call_function" and depends(reached, user, value):
                    return name_of(user)
        return None

    def is_exact_divisor(self, node: fx.Node) -> bool:
        """Whether a quotient is as exact by multiplication: by powers of two; or whether it stays a quotient."""
        divisor: Any = node.args[1]
        if divisor in self._dependent or is_power_of_two(divisor):
            return True
        written = self._memories.written
        while isinstance(divisor, fx.Node) and name_of(divisor) in VIEWS | SELECT and divisor not in written:
            divisor = divisor.args[0]
        if not isinstance(divisor, fx.Node) or divisor.op != "get_attr" or divisor in written:
            return False
        constant = operator.attrgetter(str(divisor.target))(self._module)
        if not isinstance(constant, Tensor) or constant.is_complex():
            return False
        mantissas: Tensor = torch.frexp(constant.detach().double()).mantissa
        return bool(mantissas.abs().eq(0.5).all())

    def _keeps(self, user: fx.Node, value: fx.Node, *, small: bool) -> bool:
        """Whether an operator's results have the digits of `value`, and no others are added that vary."""
        name = name_of(user)
        if name in ("_to_copy", "to") or name in _SAME:
            return True
        if name == "pow":
            return user.args[0] is value and _is_power(user.args[1])
        others = [one for one in user.args[:2] if one is not value]
        if small and name in _SUMS and any(isinstance(one, int | float) and abs(one) >= _ORDINARY for one in others):
            return name in ("sum", "mean", "cumsum")  # of which the others are dimensions
        return name in _SUMS | _SCALES and not any(one in self._dependent for one in others if isinstance(one, fx.Node))


def _depends_on_small(reached: Collection[fx.Node], user: fx.Node, value: fx.Node) -> bool:
    """Whether it matters to an operator how small a number is that is near 0."""
    name = name_of(user)
    if name in ("div", "floor_divide"):
        return user.args[1] in reached
    if name in _WITH_POSITIONS:
        return _uses_positions(user, name)
    return name in _TELLING or (name == "pow" and user.args[0] is value and not _is_power(user.args[1]))


def _jumps(_: Collection[fx.Node], user: fx.Node, value: fx.Node) -> bool:
    name, dtype = name_of(user), user.kwargs.get("dtype")
    if name == "div":
        return user.kwargs.get("rounding_mode") is not None
    return name in _JUMPS or (isinstance(dtype, torch.dtype) and not dtype.is_floating_point)


def _is_power(exponent: Any) -> bool:
    """Whether powers of numbers near 0 are nearer to 0."""
    return isinstance(exponent, int | float) and exponent >= 1


def _is_softplus(value: Any) -> bool:
    """Whether a value is 1 + exp(x)."""
    if name_of(value) != "add" or 1 not in value.args:
        return False
    return any(name_of(one) == "exp" for one in value.args)


def _rounds(node: fx.Node) -> bool:
    """Whether a number is rounded to half precision, and in single precision again after that."""
    if node.kwargs.get("dtype") not in _HALVES or name_of(node) not in ("_to_copy", "to"):
        return False
    return any(
        name_of(one) in ("_to_copy", "to") and one.kwargs.get("dtype") in (torch.float32, torch.float64)
        for one in _after(node)
    )


def _after(node: fx.Node) -> Collection[fx.Node]:
    """What takes a value, or the same numbers after other operators."""
    found: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found[user] = None
                pending += [user] if name_of(user) in _SAME else []
    return found


def _adds_number(node: Any) -> bool:
    """Whether an operator adds a number to a value."""
    numbers = [one for one in node.args if isinstance(one, int | float)] if isinstance(node, fx.Node) else []
    return name_of(node) in ("add", "rsub", "sub") and any(one != 0 and not math.isnan(one) for one in numbers)


def _uses_positions(node: fx.Node, name: str) -> bool:
    """Whether anything takes the positions that an operator returns, beside values."""
    if name == "argsort":
        return True
    return any(one.target is operator.getitem and one.args[1] != 0 for one in node.users)
