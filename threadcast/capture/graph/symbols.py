"""Follows the sizes of arguments as symbols while a callable is recorded.

PyTorch's `ShapeEnv` does so, and notes as guards what had to be true of the sizes for the callable to take the way that
it took. Imported only where sizes vary: sympy takes a third of a second. Code that asks of what type a size is
(`isinstance(n, int)`) gets another answer than for an integer, and no guard notes it: the graph must call the same
operators as one that was recorded for the example's sizes as plain integers (`takes_the_same_way`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext, free_unbacked_symbols
from torch.utils._sympy.printers import PythonPrinter

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.rewriting import VIEWS
from threadcast.capture.graph.values import LEAST, ArgumentSizes, AsNumber, Dynamic, Place, Ref, Size, sizes_at
from threadcast.core.errors import CaptureError

_TYPES = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The types of symbolic numbers, each with that of the number that it stands for."""


class Symbols:
    """The symbols of one recording, for the sizes of `dynamic`."""

    def __init__(self, dynamic: Dynamic) -> None:
        self.dynamic = dynamic
        """The sizes that have symbols."""
        self.shape_env = ShapeEnv(
            duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False
        )  # fmt: skip
        self._places: dict[sympy.Symbol, Place] = {}
        self._example: dict[sympy.Symbol, sympy.Integer] = {}
        self._repeated: dict[int, int] = {}
        """For each leaf that is an earlier leaf's tensor once more, the number of that leaf."""

    def fake(self, mode: FakeTensorMode, number: int, value: Any) -> Any:
        """Return what stands for leaf `number` of `dynamic`: a fake tensor with symbols, or a symbolic integer."""
        source = ConstantSource(f"argument_{number}")
        if isinstance(value, int):
            symbol = self.shape_env.create_symbol(value, source, DimDynamic.DYNAMIC, constraint_dim=None)
            self._note(symbol, (number, None), value)
            return self.shape_env.create_symintnode(symbol, hint=value, source=source)
        dims = self.dynamic[number]
        context: Any = StatelessSymbolicContext(
            [DimDynamic.DYNAMIC if dim in dims else DimDynamic.STATIC for dim in range(value.dim())]
        )
        tensor = mode.from_tensor(value, source=source, symbolic_context=context)
        for dim in dims:
            size: Any = tensor.shape[dim]
            if isinstance(size, torch.SymInt):
                self._note(size.node.expr, (number, dim), value.shape[dim])
        return tensor

    def repeat(self, number: int, first: int) -> None:
        """Note that leaf `number` is the tensor of leaf `first`; CaptureError where other sizes of it vary."""
        if set(self.dynamic.get(number, ())) != set(self.dynamic.get(first, ())):
            raise CaptureError("cannot capture for several sizes: of one tensor some vary, and some do not")
        self._repeated[number] = first

    @contextmanager
    def fixed_in_texts(self) -> Iterator[None]:
        """Within the context, a symbolic number in a text is fixed to the example's, as in `f"layer {n}"`.

        Its text would else be that of the symbol: `table.get(str(n), default)` would find the default for every size.
        """
        before = {kind: kind.__repr__ for kind in _TYPES}

        def text(value: Any) -> str:
            kind = type(value)
            return repr(_TYPES[kind](value)) if value.node.shape_env is self.shape_env else before[kind](value)

        for kind in _TYPES:
            kind.__repr__ = text  # type: ignore[method-assign]
        try:
            yield
        finally:
            for kind, original in before.items():
                kind.__repr__ = original  # type: ignore[method-assign]

    def _note(self, symbol: Any, place: Place, value: int) -> None:
        if isinstance(symbol, sympy.Symbol):
            self._places[symbol], self._example[symbol] = place, sympy.Integer(value)

    def plain(self, value: Any) -> Any:
        """Return `value` with a `Size` or a number in place of each symbolic number, in nested lists and dictionaries.

        CaptureError for a number that depends on the values of tensors.
        """
        if type(value) is torch.SymInt:
            expression = self.shape_env.simplify(value.node.expr)
            if free_unbacked_symbols(expression):
                raise CaptureError("cannot capture: a size depends on tensor values (masks, nonzero, unique)")
            number = int(expression.xreplace(self._example))
            return number if expression.is_number else Size(number, expression)
        if isinstance(value, torch.SymFloat):
            return float(value)  # a guard says that it stays so
        if isinstance(value, torch.SymBool):
            return bool(value)
        if isinstance(value, list):
            return [self.plain(part) for part in value]
        if type(value) in (tuple, torch.Size):
            return tuple(self.plain(part) for part in value)
        if isinstance(value, dict):
            return {name: self.plain(part) for name, part in value.items()}
        return value

    def sizes(self, expressions: Sequence[sympy.Expr], *, first: int, leaves: Sequence[Any]) -> ArgumentSizes:
        """Return how the arguments' sizes determine `expressions`; CaptureError where they do not.

        In the result leaves are counted from leaf number `first`; `leaves` are those of the example from there on.
        """
        fixed = [place for symbol, place in self._places.items() if self.shape_env.simplify(symbol).is_number]
        if fixed or not self._places:
            raise CaptureError("cannot capture for several sizes: the callable takes a way of its own for this one")
        known = {symbol: sympy.Symbol(f"n{i}", integer=True) for i, symbol in enumerate(self._places)}
        guards = [self.shape_env.simplify(guard.expr) for guard in self.shape_env.guards]
        equal = [sympy.Eq(old, new) for old, new in self.shape_env.replacements.items() if old in known]
        bounds = []
        for symbol in self._places:
            bound = self.shape_env.var_to_range.get(symbol)
            if bound is not None:
                bounds += [symbol >= bound.lower] if isinstance(bound.lower, sympy.Integer) else []
                bounds += [symbol <= bound.upper] if isinstance(bound.upper, sympy.Integer) else []
        conditions = [*(symbol >= LEAST for symbol in self._places), *bounds, *equal, *guards]
        for part in (*conditions, *expressions):
            strange = part.free_symbols - known.keys()
            if strange:
                raise CaptureError(f"cannot capture: sizes depend on {', '.join(map(str, strange))}")
        printer = PythonPrinter()
        names = ", ".join(map(str, known.values()))

        def source(part: sympy.Basic) -> str:
            return str(printer.doprint(part.xreplace(known)))

        fits = " and ".join(f"({source(part)})" for part in conditions if part not in (True, sympy.true)) or "True"
        values = "".join(f"{source(part)}, " for part in expressions)
        scope: dict[str, Any] = {"math": math, "torch": torch}
        places = tuple((leaf - first, dim) for leaf, dim in self._places.values())
        return ArgumentSizes(
            places, tuple(sizes_at(places, leaves)), eval(f"lambda {names}: ({values})", scope),
            eval(f"lambda {names}: {fits}", scope),
            {leaf - first: earlier - first for leaf, earlier in self._repeated.items() if earlier in self.dynamic},
        )  # fmt: skip


def takes_the_same_way(captured: Captured, plain: Captured) -> bool:
    """Return whether `captured`, for several sizes, calls the operators of `plain` with the same numbers.

    `plain` is captured for the same arguments alone. Equal views of one value may be one in either of them.
    """
    assert captured.sizes is not None
    slots = [slot for slot, entry in enumerate(captured.program.inputs) if entry.role == "size"]
    sizes = dict(zip(slots, captured.sizes.values(*captured.sizes.example), strict=True))
    return _calls(captured, sizes) == _calls(plain, {})


def _calls(captured: Captured, sizes: Mapping[int, int]) -> tuple[Counter[str], set[str]]:
    """The calls of operators with their numbers, in words: how often each comes, and which views there are."""
    others: Counter[str] = Counter()
    views = set()
    for node in captured.program.nodes:
        text = f"{node.target} {_without_refs(node.args, sizes)!r} {_without_refs(node.kwargs, sizes)!r}"
        if node.target in VIEWS:
            views.add(text)
        else:
            others[text] += 1
    return others, views


def _without_refs(template: Any, sizes: Mapping[int, int]) -> Any:
    if isinstance(template, Ref):
        return sizes.get(template.slot, "value")
    if isinstance(template, AsNumber):
        return "number"
    if isinstance(template, list | tuple):
        return [_without_refs(part, sizes) for part in template]
    if isinstance(template, dict):
        return {key: _without_refs(part, sizes) for key, part in template.items()}
    return template
