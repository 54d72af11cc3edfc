"""What no input shows: that another library comes to something else in the middle of a program than PyTorch does.

A backend answers inputs that are derived from the example (`probes`), and these reach what is computed at the
beginning. Behind layers of weights they may not. So every library is taken to be as bad as the worst that is known:

*Forms.* A few operators are written with others that round, order or overflow in other ways (`_OTHER_FORMS`).
*Products.* The program runs in PyTorch with everything that is a product with weights made negative, as other weights
or inputs could make it: no NaN or infinity may arise of which a library could make a number.
*Digits.* It runs twice side by side, the second time with zeros for small results of sigmoids and their kind, or a last
digit less in quotients. Nothing may follow from these but roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.program_values import name_of, varying

COMPILED = "torch.compile"
"""The backend that runs PyTorch's own kernels where it has no code of its own."""
_OTHER_FORMS = frozenset(("atan2", "logaddexp", "logaddexp2", "logcumsumexp", "signbit"))
"""Operators that ONNX has not: what they are written with has other digits, signs or limits."""
_ORDERS = frozenset(("topk", "sort", "argsort"))
"""Operators by which one of several equal numbers comes first: in ONNX another than in PyTorch."""
_NEAR_ZERO = frozenset((
    "sigmoid", "special_expit", "erf", "special_erf", "softplus", "mish", "log1p", "special_log1p", "expm1",
    "special_expm1", "log_sigmoid_forward", "binary_cross_entropy_with_logits", "soft_margin_loss",
))  # fmt: skip
"""Operators whose small results a library gives as 0, or with few digits: ONNX Runtime sigmoid(-20), OpenVINO erf."""
_QUOTIENTS = frozenset(("div", "log2", "log10"))
"""Operators that ONNX's runtimes compute by a rounded factor: x / 0.1 as x * 10, log2(x) as log(x) / log(2)."""
_HALVES = (torch.float16, torch.bfloat16)
_VIEWS = frozenset(("view", "slice", "select", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "clone"))
_PRODUCTS = frozenset(("mm", "bmm", "matmul", "addmm", "baddbmm", "linear", "convolution"))
_SMALL = 6e-8
"""Largest of the small numbers in place of sigmoids: their roots are seen, and what a norm with an eps makes is not."""
_SEEN, _SEEN_SHARE = 1e-4, 1e-3
"""Difference that counts, and the same as a share of the largest number of a tensor."""

_Replaced = Callable[[fx.Node, Any, Any, Callable[[Any], Any]], tuple[Any, Any]]
"""Takes an operator, its result in both runs, and what tells an argument's value in the second; returns both."""


class Inside:
    """What a program may come to inside. It runs in PyTorch up to five times, at the first questions."""

    def __init__(self, read: ReadProgram) -> None:
        self._read = read
        self._varying = list(varying(read.module))
        self._observed: _Observed | None = None
        self._arises: str | None = None
        self._dependent: dict[bool, str | None] = {}
        """What depends on digits, for the backend that is compiled, and for all others."""

    def refused(self, backend: str) -> str | None:
        """Return in words why a backend may not run the program; None: it may, as far as no input shows."""
        for node in self._varying:
            if (why := next(self._reasons(node, name_of(node), backend), None)) is not None:
                return why
        if self._observed is None:
            self._observed = _Observed(self._read, self._varying, turns=False)
            self._arises = self._arises_beside(self._observed)
        if backend == "openvino" and self._observed.has_doubles:
            return "it has no double precision"
        compiled = backend == COMPILED
        if self._arises is None and compiled not in self._dependent:
            self._dependent[compiled] = self._depends(compiled=compiled)
        return self._arises or self._dependent[compiled]

    def _reasons(self, node: fx.Node, name: str, backend: str) -> Iterator[str]:
        rounds = name == "floor_divide" or node.kwargs.get("rounding_mode") is not None
        if rounds and isinstance(node.args[1], float) and not _is_power_of_two(node.args[1]):
            yield f"{name} rounds a quotient that a library may round before"
        if _rounds(node):
            yield "rounding to half precision and back may be left out"
        if backend == COMPILED:
            return
        if name in _OTHER_FORMS or (name == "scatter_reduce" and "mean" in node.args):
            yield f"{name} has another form in ONNX"
        if name in ("remainder", "fmod") and not _is_power_of_two(node.args[1]):
            yield f"{name} is computed by a rounded quotient in ONNX"
        if name in _ORDERS and _uses_positions(node, name):
            yield f"{name} puts equal numbers in another order in ONNX"

    def _arises_beside(self, example: _Observed) -> str | None:
        """Return in words where negative products make a NaN or an infinity that the example has not."""
        try:
            turned = _Observed(self._read, self._varying, turns=True)
        except Exception:  # noqa: BLE001 - products that are none that the program can have
            return None
        others = [node for node in turned.not_finite if node not in example.not_finite]
        if not others:
            return None
        return f"{name_of(others[0])} may make a NaN or an infinity inside, and a library a number of it"

    def _depends(self, *, compiled: bool) -> str | None:
        """Return in words where a result depends on digits that a library may not have; None: nowhere."""
        names = {name_of(node) for node in self._varying}
        small = names & ({"erf", "special_erf"} if compiled else _NEAR_ZERO)
        quotients = set[str]() if compiled else names & _QUOTIENTS
        for of, replaced in ((small, _small_ones), (quotients, _quotients)):
            if of:
                found = _SideBySide(self._read.module, self._varying, replaced(of)).difference(self._read.example)
                if found is not None:
                    return f"{sorted(of)[0]} may have other digits, and {found} depends on them"
        return None


class _Observed(fx.Interpreter):
    """A run of a program's example in PyTorch; with `turns` its products with weights are made negative."""

    def __init__(self, read: ReadProgram, of: Sequence[fx.Node], *, turns: bool) -> None:
        super().__init__(read.module)
        self._varying, self._turns = set(of), turns
        self._finite: dict[fx.Node, bool] = {}
        self.not_finite: list[fx.Node] = []
        """The operators that have a NaN or an infinity in what they return, and not in what they take."""
        self.has_doubles = False
        """Whether an operator returns numbers in double precision."""
        self.run(*[one.clone() for one in read.example])

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator."""
        value = super().run_node(n)
        if n in self._varying:
            is_product = name_of(n) in _PRODUCTS and any(one not in self._varying for one in n.all_input_nodes)
            value = -value.abs() if self._turns and is_product else value
            self.has_doubles |= isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128)
        self._finite[n] = _is_finite(value)
        if n in self._varying and not self._finite[n] and all(self._finite[one] for one in n.all_input_nodes):
            self.not_finite.append(n)
        return value


class _Two(NamedTuple):
    """A value in both runs."""

    one: Any
    other: Any


class _Differs(Exception):
    """Both runs of a program differ at the operator `name`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _SideBySide(fx.Interpreter):
    """Runs a program twice, side by side: the second time with other numbers at some operators."""

    def __init__(self, module: fx.GraphModule, of: Sequence[fx.Node], replaced: _Replaced) -> None:
        super().__init__(module)
        self._varying, self._replaced = set(of), replaced

    def difference(self, given: Sequence[Tensor]) -> str | None:
        """Return the first operator, but for those that are replaced, at which both differ beyond rounding."""
        try:
            self.run(*[_Two(one.clone(), one.clone()) for one in given])
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
        if n in self._varying:
            before = one, other
            one, other = self._replaced(n, one, other, lambda value: _half(self.env.get(value, value), 1))
            if before[1] is other and not _near(one, other):
                raise _Differs(name_of(n))
            if isinstance(n.target, OpOverload) and n.target._schema.is_mutable and isinstance(before[0], Tensor):
                one, other = before[0].copy_(one), before[1].copy_(other)
        return _Two(one, other)


def _half(value: Any, at: int) -> Any:
    return value[at] if isinstance(value, _Two) else value


def _halves(value: Any, at: int) -> Any:
    return pytree.tree_map(lambda one: _half(one, at), value, is_leaf=lambda one: isinstance(one, _Two))


def _is_finite(value: Any) -> bool:
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return True
    return bool(value.isfinite().all())


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
