"""The graphs of one call: one for each variant, captured or fused when it is first asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor

from threadcast.capture.graph.captured import Captured
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core.errors import CaptureError, ThreadcastError
from threadcast.runtime.engine.native.library import has_engine, is_being_compiled, wait_for_library
from threadcast.runtime.operators.fuse import fused, loops_of
from threadcast.runtime.operators.kernels import Kernel
from threadcast.runtime.operators.library import are_being_compiled, are_compiled, wait_for
from threadcast.runtime.operators.products import with_products
from threadcast.runtime.plans.model_format import formats_with_equal_results
from threadcast.runtime.plans.variant import MemoryFormat, Variant, same_structure
from threadcast.runtime.tuner.candidate import VariantPlan

NODE_BYTES = 10_000
"""Bytes of a node with its part in a plan and in an engine, rounded up: LSTM small took 3,800 without plans."""

_logger = logging.getLogger("threadcast")


class VariantGraphs:
    """The graphs of one call. The first is captured at once: CaptureError where the call cannot be captured.

    `capture(memory_format)` returns the graph of a call; `formats` are the memory formats to try. A graph that draws
    random numbers is used in the format as given only. With `ours` operators of our own are in place of slower ones
    in the graphs that are planned (`operators.products`). `hurries` says whether compilers may take the cores from the
    steps.
    """

    def __init__(
        self, capture: Callable[[MemoryFormat], Captured], formats: Sequence[MemoryFormat], *, ours: bool = True,
        hurries: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._capture, self._ours, self._hurries = capture, ours, hurries
        captured, formats = self._first_of(formats)
        self.formats = formats_with_equal_results(captured, formats)
        """The memory formats in which the call has equal results."""
        self.first = captured if self.formats[0] is formats[0] else capture(self.formats[0])
        """The graph that was captured first, in the first of `formats`."""
        self._captures = {self.formats[0]: self.first}
        self._graphs: dict[Variant, Captured] = {}
        self._loops: dict[Variant, list[Kernel]] = {}
        self._compiled: dict[Variant, bool] = {}
        """Whether the loops of each variant were compiled when that was first asked."""
        self.awaited: Variant | None = None
        """The variant for which something was being compiled when `compiled` was asked last."""

    def as_captured(self, variant: Variant) -> Captured:
        """Return the graph of a captured variant, by PyTorch's operators alone."""
        return self._captures[variant.memory_format]

    def captured_in(self, memory_format: MemoryFormat) -> Captured | None:
        """Return the graph in a memory format, by PyTorch's operators alone; None where it cannot be captured."""
        if memory_format not in self._captures:
            if (found := self._capture_in(memory_format)) is None:
                return None
            self._captures[memory_format] = found
        return self._captures[memory_format]

    @property
    def size_bytes(self) -> int:
        """Bytes that the graphs take: `NODE_BYTES` for each node, and the tensors of the example."""
        graphs = {id(one): one for one in (*self._captures.values(), *self._graphs.values())}.values()
        nodes = sum(len(captured.program.nodes) for captured in graphs)
        return NODE_BYTES * nodes + sum(tensor.nbytes for tensor in self.first.arguments)

    @property
    def held_bytes(self) -> int:
        """Bytes of the model's tensors that the graphs refer to."""
        return sum(value.nbytes for value in self.first.held.values() if isinstance(value, Tensor))

    def is_compiled(self, variant: Variant) -> bool:
        """Return whether the loops that `variant` needs were compiled when this was first asked; starts nothing.

        It is asked before every step, and looking at the files takes 0.1 ms.
        """
        if not variant.fused or variant in self._graphs or not has_engine():
            return True
        if variant not in self._compiled:
            self._compiled[variant] = are_compiled(self._loops_of(variant))
        return self._compiled[variant]

    def compiled(self, variant: Variant) -> bool:
        """Return whether all that `variant` needs is compiled. If not, a thread compiles it, and `find` has to wait."""
        compiles = is_being_compiled(hurry=self._hurries()) or self._compiles_loops(variant)
        self.awaited = variant if compiles else None
        return not compiles

    @property
    def compiling(self) -> bool:
        """Whether what `compiled` was asked for last is still being compiled."""
        return self.awaited is not None and not self.compiled(self.awaited)

    @property
    def awaits_engine(self) -> bool:
        """Whether plans wait for the native engine, which is being compiled."""
        return self.awaited is not None and is_being_compiled(hurry=self._hurries())

    def _compiles_loops(self, variant: Variant) -> bool:
        return not self.is_compiled(variant) and are_being_compiled(self._loops_of(variant), hurry=self._hurries())

    def wait(self, variant: Variant, timeout_s: float) -> None:
        """Return when all that `compiled` has begun to compile for `variant` is made, or after `timeout_s` seconds."""
        wait_for_library(timeout_s)
        if variant in self._loops:
            wait_for(self._loops[variant], timeout_s)

    def find(self, variant: Variant) -> Captured | None:
        """Return the graph of `variant`.

        None, with a log message, where it cannot be captured or its operators cannot be fused; None also where there
        are no operators to fuse.
        """
        if variant not in self._graphs:
            captured = self.captured_in(variant.memory_format)
            if captured is None:
                return None
            found = self._fused(captured) if variant.fused else self._unfused(captured)
            if found is None:
                return None
            self._graphs[variant] = found
        return self._graphs[variant]

    def plan_like(self, other: VariantPlan) -> VariantPlan | None:
        """Return the plan of another call as one of this call; None where the graphs differ in structure.

        None also where not all that it needs is compiled.
        """
        variant, memory_format = other.variant, other.variant.memory_format
        if memory_format not in self.formats or self.captured_in(memory_format) is None:
            return None
        captured = self.find(variant) if self.compiled(variant) else None
        if captured is None or not same_structure(captured.graph, other.captured.graph):
            return None
        return VariantPlan(variant, captured, other.plan, self.as_captured(variant).graph)

    def _loops_of(self, variant: Variant) -> list[Kernel]:
        if variant not in self._loops:
            self._loops[variant] = loops_of(self.as_captured(variant))
        return self._loops[variant]

    def _first_of(self, formats: Sequence[MemoryFormat]) -> tuple[Captured, Sequence[MemoryFormat]]:
        """The graph in the first of `formats` in which there is one, and the formats from there on."""
        for i, memory_format in enumerate(formats[:-1]):
            if (captured := self._capture_in(memory_format, first=True)) is not None:
                return captured, formats[i:]
        return self._capture(formats[-1]), formats[-1:]

    def _capture_in(self, memory_format: MemoryFormat, *, first: bool = False) -> Captured | None:
        try:
            return self._capture(memory_format)
        except CaptureError as error:
            if first and isinstance(error, NoTurn):  # the next call tries again, in all formats
                raise
            _logger.info("%s: %s", memory_format, error)
            return None

    def _unfused(self, captured: Captured) -> Captured:
        return with_products(captured) if self._ours else captured

    def _fused(self, captured: Captured) -> Captured | None:
        try:
            return fused(captured) if has_engine() else None
        except ThreadcastError as error:
            _logger.warning("operators are not fused: %s", error)
            return None
