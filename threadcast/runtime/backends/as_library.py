"""Runs a program in PyTorch with what a library makes of numbers inside, as it says itself of its operators.

Inputs that are derived from the example reach what is computed at its beginning; in the middle of a network they may
not. What a library's operators make of NaN, of small numbers and of quotients is known (`library_facts`). So the
program is run twice side by side, once as PyTorch, once with the library's numbers in these operators' places, and it
shows whether that comes to anything. Weights' products are turned for that, too, as they may be any numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from threadcast.runtime.backends.library_facts import Facts
from threadcast.runtime.backends.operator_questions import Kind
from threadcast.runtime.backends.program_values import Memories, name_of, varying

_RIGHT_ENOUGH = frozenset(("gelu", "silu", "elu", "celu", "sigmoid", "special_expit", "erf", "special_erf"))
"""Operators whose small results may have few digits, unless what follows depends on these."""
_FOLLOWED = frozenset(("sigmoid", "special_expit", "erf", "special_erf"))
_BY_QUOTIENT = frozenset(("remainder", "fmod"))
_ORDERS = frozenset(("topk", "sort", "argsort"))
"""Operators by which one of several equal numbers comes first."""
_LOGS = frozenset(("log2", "log10"))
"""Operators that some compute as quotients of natural logarithms."""
_HALVES = (torch.float16, torch.bfloat16)
_VIEWS = frozenset(("view", "slice", "select", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "clone"))
_PRODUCTS = frozenset(("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "convolution"))
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
TURNED: tuple[Callable[[Tensor], Tensor], ...] = (torch.zeros_like, lambda x: -x.abs())
"""What is made of weights' products inside a program."""
_SMALL = 6e-8
"""Largest of the small numbers in place of sigmoids: their roots are seen, and what a norm with an eps makes is not."""
_SEEN, _SEEN_SHARE = 1e-4, 1e-3
"""Difference that counts, and the same as a share of the largest number of a tensor."""


class Program:
    """A program of operators, and which of its values depend on its arguments."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.varying = list(varying(module, Memories(list(module.graph.nodes))))

    def refused(self) -> str | None:
        """Return an operator that all backends compute otherwise: quotients that are rounded before they are bins."""
        for node in self.varying:
            floors = name_of(node) == "floor_divide" or node.kwargs.get("rounding_mode") == "floor"
            if floors and isinstance(node.args[1], float) and not _is_power_of_two(node.args[1]):
                return name_of(node)
        return None

    def computed_by(self, facts: Facts) -> str | None:
        """Return in words which operator a library of these facts computes with too few digits; None: none."""
        for node in self.varying:
            why = next(self._reasons(node, name_of(node), facts), None)
            if why is not None:
                return why
        return None

    def _reasons(self, node: fx.Node, name: str, facts: Facts) -> Iterator[str]:
        if _rounds(node) and facts.differs("rounding", "digits"):
            yield "rounding to half precision and back is left out there"
        asked = "scatter_reduce mean" if name == "scatter_reduce" and "mean" in node.args else name
        small = facts.differs(name, "small") and name not in _RIGHT_ENOUGH
        if name in _BY_QUOTIENT:
            if not _is_power_of_two(node.args[1]) and facts.differs(name, "digits"):
                yield f"{name} is computed by a rounded quotient there"
        elif facts.differs(asked, "digits") or small:
            yield f"{name} has too few digits there for some numbers"
        if name in _ORDERS and _uses_positions(node, name) and facts.differs(f"{name} positions", "digits"):
            yield f"{name} puts equal numbers in another order there"

    def depends_on(self, facts: Facts, example: Sequence[Tensor]) -> str | None:
        """Return in words where a result depends on digits that a library does not have; None: nowhere."""
        names = {name_of(node) for node in self.varying}
        small = {name for name in names & _FOLLOWED if facts.differs(name, "small")}
        exact = {name for name in names & (_LOGS | {"div"}) if facts.differs(name, "exact")}
        for of, replaced in ((small, _small_ones), (exact, _quotients)):
            if of and (found := _Pair(self, replaced(of), looks=True).first_difference(example)) is not None:
                return f"{sorted(of)[0]} has other digits there, and {found} depends on them"
        return None


class Seen(NamedTuple):
    """The results of a run, the kinds of numbers that operators took inside, and whether there is double precision."""

    results: Sequence[Tensor]
    kinds: Collection[tuple[str, Kind]]
    double: bool


class Observed(fx.Interpreter):
    """Runs a program in PyTorch, and tells what numbers came to its operators.

    `turned` is one of `TURNED`: what is made of weights' products, None: nothing.
    """

    def __init__(self, program: Program, turned: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__(program.module)
        self._varying, self._turned = set(program.varying), turned
        self._kinds: set[tuple[str, Kind]] = set()
        self._double = False

    def seen(self, given: Sequence[Tensor]) -> Seen:
        """Run the program."""
        results = self.run(*[one.clone() for one in given])
        return Seen(list(results), self._kinds, self._double)

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator."""
        if n in self._varying:
            taken = [self.env[one] for one in _taken(n)]
            self._kinds |= {(name_of(n), kind) for value in taken for kind in _kinds(value)}
        value = super().run_node(n)
        self._double = self._double or (isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128))
        return _turned(n, value, self._varying, self._turned)


def lost_by(
    program: Program, facts: Facts, fused: Collection[str], given: Sequence[Tensor], seen: Seen,
    allows: Callable[[Sequence[Tensor]], bool], turned: Callable[[Tensor], Tensor] | None = None,
) -> str | None:  # fmt: skip
    """Return in words where a library loses a NaN or an infinity that `seen` has; None: nowhere that nothing shows.

    `fused` are the operators that lose one beside what its facts say, because it fuses them with others. `allows` tells
    which results nobody looks at again.
    """
    for name, kind in sorted(seen.kinds):
        if kind != "nan" and facts.differs(name, kind):
            return f"{name} makes something else of infinities there"
    losing = {name for name, kind in seen.kinds if kind == "nan" and (name in fused or facts.differs(name, "nan"))}
    if not losing:
        return None
    wanted, found = _Pair(program, _numbers_of_nan(fused, facts), turned=turned).both(given)
    if allows(found) and not all(map(_same, wanted, found)):
        return f"NaN arises inside, of which {sorted(losing)[0]} makes a number"
    return None


class _Two(NamedTuple):
    """A value in PyTorch, and with the library's numbers."""

    one: Any
    other: Any


_Replaced = Callable[[fx.Node, Any, Any, Callable[[Any], Any]], tuple[Any, Any]]
"""Takes an operator, both its results and what tells an argument's value with the library's numbers; returns both."""


class _Differs(Exception):
    """The two runs of a program differ at the operator `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _Pair(fx.Interpreter):
    """Runs a program twice, side by side: the second time with other numbers at some operators."""

    def __init__(
        self, program: Program, replaced: _Replaced, *, looks: bool = False,
        turned: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(program.module)
        self._varying, self._replaced, self._looks, self._turned = set(program.varying), replaced, looks, turned

    def both(self, given: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the results of both."""
        results = self.run(*[_Two(one.clone(), one.clone()) for one in given])
        return [_half(one, 0) for one in results], [_half(one, 1) for one in results]

    def first_difference(self, given: Sequence[Tensor]) -> str | None:
        """Return the first operator, but for those that are replaced, at which both differ beyond rounding."""
        try:
            self.both(given)
        except _Differs as found:
            return found.name
        except Exception as error:  # noqa: BLE001 - a number that is no index is a difference, too
            return str(type(error).__name__)
        return None

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator."""
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        one, other = (n.target(*_halves(args, at), **_halves(kwargs, at)) for at in (0, 1))  # type: ignore[operator]
        one, other = (_turned(n, value, self._varying, self._turned) for value in (one, other))
        if n in self._varying:
            before = one, other
            one, other = self._replaced(n, one, other, lambda value: _half(self.env.get(value, value), 1))
            if self._looks and before[1] is other and not _near(one, other):
                raise _Differs(name_of(n))
            if isinstance(n.target, OpOverload) and n.target._schema.is_mutable and isinstance(before[0], Tensor):
                one, other = before[0].copy_(one), before[1].copy_(other)
        return _Two(one, other)


def _half(value: Any, at: int) -> Any:
    return value[at] if isinstance(value, _Two) else value


def _halves(value: Any, at: int) -> Any:
    return pytree.tree_map(lambda one: _half(one, at), value, is_leaf=lambda one: isinstance(one, _Two))


def _taken(node: fx.Node) -> list[fx.Node]:
    """The arguments of an operator whose numbers it computes with: the mask of attention may have infinities."""
    return node.all_input_nodes[:3] if name_of(node) == _ATTENTION else node.all_input_nodes


def _kinds(value: Any) -> Iterator[Kind]:
    if not isinstance(value, Tensor) or not value.is_floating_point() or math.isfinite(value.sum()):
        return
    if bool(value.isnan().any()):
        yield "nan"
    if bool(value.eq(math.inf).any()):
        yield "inf"
    if bool(value.eq(-math.inf).any()):
        yield "-inf"


def _turned(node: fx.Node, value: Any, varies: Collection[fx.Node], turn: Callable[[Tensor], Tensor] | None) -> Any:
    if turn is None or name_of(node) not in _PRODUCTS or all(one in varies for one in node.all_input_nodes):
        return value
    return turn(value)


def _numbers_of_nan(fused: Collection[str], facts: Facts) -> _Replaced:
    """Zeros in place of NaN, and other truth values and positions, at the operators that make something of them."""

    def replaced(node: fx.Node, one: Any, other: Any, value_of: Callable[[Any], Any]) -> tuple[Any, Any]:
        name = name_of(node)
        if name not in fused and not facts.differs(name, "nan"):
            return one, other
        taken = [value for value in map(value_of, _taken(node)) if "nan" in _kinds(value)]
        return one, _without_nan(other, taken) if taken else other

    return replaced


def _without_nan(result: Any, taken: Sequence[Tensor]) -> Any:
    if not isinstance(result, Tensor):
        return type(result)(_without_nan(one, taken) for one in result)
    if result.is_floating_point():
        return torch.where(result.isnan(), 0.0, result)
    if result.dtype is not torch.bool:
        return torch.zeros_like(result) if bool(result.any()) else torch.ones_like(result)
    for value in taken:
        if value.shape == result.shape:
            result = result ^ value.isnan()
    return result if any(value.shape == result.shape for value in taken) else ~result


def _small_ones(names: Collection[str]) -> _Replaced:
    """Small numbers, and zeros in their place."""
    generator = torch.Generator().manual_seed(0)

    def replaced(node: fx.Node, one: Any, other: Any, value_of: Callable[[Any], Any]) -> tuple[Any, Any]:
        if name_of(node) not in names or not isinstance(one, Tensor) or one.dtype in _HALVES:
            return one, other
        small = torch.rand(one.shape, generator=generator).to(one.dtype) * (_SMALL * 0.8) + _SMALL * 0.2
        return small, torch.zeros_like(other)

    return replaced


def _quotients(names: Collection[str]) -> _Replaced:
    """Halves and wholes, a last digit more and less, where an operator is no exact quotient."""

    def replaced(node: fx.Node, one: Any, other: Any, value_of: Callable[[Any], Any]) -> tuple[Any, Any]:
        name = name_of(node)
        if name not in names or not one.is_floating_point():
            return one, other
        if name == "div":
            by: Any = value_of(node.args[1])
            if _is_power_of_two(by) or (isinstance(node.args[1], fx.Node) and not _is_constant(node.args[1])):
                return one, other
            if node.kwargs.get("rounding_mode"):
                raise _Differs(name)
        steps = torch.arange(one.numel()).remainder(25)
        steps = torch.where(steps < 16, steps + 1, 15 - steps).mul(0.5).reshape(one.shape).to(one.dtype)
        return torch.nextafter(steps, steps + 1), torch.nextafter(steps, steps - 1)

    return replaced


def _is_constant(node: fx.Node) -> bool:
    return node.op == "get_attr" or (node.op == "call_function" and all(map(_is_constant, node.all_input_nodes)))


def _is_power_of_two(divisor: Any) -> bool:
    """Whether quotients by this number, or by each of a tensor's, are exact: powers of two, or such with a minus."""
    if isinstance(divisor, Tensor):
        return divisor.is_floating_point() and bool(torch.frexp(divisor.double()).mantissa.abs().eq(0.5).all())
    return isinstance(divisor, int | float) and divisor != 0 and math.frexp(abs(divisor))[0] == 0.5


def _near(one: Any, other: Any) -> bool:
    """Whether two values differ by nothing that counts; of several tensors each is looked at where it is read."""
    if not isinstance(one, Tensor) or not one.numel():
        return True
    if not one.is_floating_point() and not one.is_complex():
        return one.equal(other)
    same = (one == other) | (one.isnan() & other.isnan())
    error = torch.where(same, 0.0, (one - other).abs()).nan_to_num(math.inf, math.inf)
    sizes = one.abs()
    return bool((error <= max(_SEEN, _SEEN_SHARE * float(sizes.where(sizes.isfinite(), 0.0).max()))).all())


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, equal_nan=True) if one.is_floating_point() else one.equal(other)


def _rounds(node: fx.Node) -> bool:
    """Whether a number is rounded to half precision, and is in single precision again after that, or after views."""
    if node.kwargs.get("dtype") not in _HALVES or name_of(node) not in ("_to_copy", "to"):
        return False
    pending, widens = [node], False
    while pending:
        for user in pending.pop().users:
            to = user.kwargs.get("dtype") if name_of(user) in ("_to_copy", "to") else None
            widens = widens or to in (torch.float32, torch.float64)
            pending += [user] if name_of(user) in _VIEWS else []
    return widens


def _uses_positions(node: fx.Node, name: str) -> bool:
    """Whether anything takes the positions that an operator returns, beside values."""
    return name == "argsort" or any(len(one.args) > 1 and one.args[1] != 0 for one in node.users)
