"""The plans of one call that are stored for later processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, OpGraph, Plan
from threadcast.runtime.plans.backend_history import Forecast
from threadcast.runtime.plans.malleable_plan import counts_below
from threadcast.runtime.plans.plan_store import Extra, PlanStore, StoredPlan
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuner.candidate import VariantPlan
from threadcast.runtime.tuner.variant_graphs import VariantGraphs
from threadcast.scheduler.policies import Problem


class CallPlans:
    """Reads and writes plans of one call in `plans`, with their plans for fewer cores.

    `call` identifies the call in the store.
    """

    def __init__(self, plans: PlanStore, machine: Machine, *, call: object) -> None:
        self._plans, self._machine, self._call = plans, machine, call
        self._stored: dict[VariantPlan, StoredPlan] = {}
        """What is stored of each variant_plan."""
        self._tried: tuple[OpGraph, bool, frozenset[Extra]] | None = None
        """What is stored of what was tried: for which graph, whether beside a plan, and what."""

    def read(self, graphs: VariantGraphs) -> tuple[VariantPlan, StoredPlan] | None:
        """Return the variant_plan stored for the first graph of the call, and what is stored of it.

        None where there is none in this memory format, and where what it needs is not compiled, or cannot be;
        ThreadcastError where the stored plan does not fit the graph.
        """
        captured = graphs.first.graph
        stored = self._plans.read(captured)
        if stored is None or stored.memory_format != graphs.formats[0]:
            return None
        variant = Variant(stored.memory_format, stored.fused)
        planned = graphs.find(variant) if graphs.compiled(variant) else None
        if planned is None:
            return None
        problem = None if stored.curves is None else Problem(planned.graph, stored.curves, self._machine)
        variant_plan = VariantPlan(variant, planned, stored.plan, captured, problem, stored.fewer)
        self._stored[variant_plan] = stored
        return variant_plan, stored

    def backends(self, captured: Captured) -> Forecast:
        """What is expected of the best backend for a graph."""
        return self._plans.backends(captured.graph)

    def note_backend(self, captured: Captured, gain: float, step_s: float) -> None:
        """Note that a backend was the fastest for a graph, by this gain, and what its calls took."""
        self._plans.note_backend(captured.graph, gain, step_s)

    def write(self, variant_plan: VariantPlan, step_s: float | None, *, eager_s: float | None = None) -> None:
        """Store a variant_plan whose steps take `step_s` seconds, and eager PyTorch's `eager_s`.

        Without seconds it was not compared yet: it is stored where nothing else is, so that a later process, should
        this one end before, begins with its comparison.
        """
        if step_s is None and self._stored:
            return
        plan, variant = variant_plan.plan, variant_plan.variant
        stored = StoredPlan(plan, variant.memory_format, step_s, variant.fused, eager_s=eager_s)
        self._write(variant_plan, stored)

    def _write(self, variant_plan: VariantPlan, stored: StoredPlan) -> None:
        missing = not set(counts_below(len(self._machine))) <= set(variant_plan.fewer)
        curves = variant_plan.problem.curves if variant_plan.problem is not None and missing else None
        self._stored[variant_plan] = stored = replace(stored, fewer=variant_plan.fewer, curves=curves)
        self._plans.write(self._call, variant_plan.unfused, stored)

    def lost(self, variant_plan: VariantPlan) -> None:
        """Delete a plan that was stored before it was compared, and has lost."""
        stored = self._stored.get(variant_plan)
        if stored is not None and stored.step_s is None:
            self._plans.drop(variant_plan.unfused, backend=False)
            del self._stored[variant_plan]

    def drop(self, captured: Captured) -> None:
        """Delete what is stored for a graph without fused operators."""
        self._plans.drop(captured.graph)
        self._stored = {one: stored for one, stored in self._stored.items() if one.unfused is not captured.graph}

    def add_fewer(self, variant_plan: VariantPlan, fewer: Mapping[int, Plan]) -> None:
        """Remember all plans of a variant_plan for fewer cores; store them where the variant_plan is stored."""
        known, variant_plan.fewer = variant_plan.fewer, fewer
        if variant_plan in self._stored and fewer.keys() != known.keys():
            self._write(variant_plan, self._stored[variant_plan])

    def tried(self, captured: Captured, beside: VariantPlan | None) -> frozenset[Extra]:
        """Return what earlier processes found to be slower than the stored plan, or without one than PyTorch."""
        graph, planned = captured.graph if beside is None else beside.unfused, beside is not None
        tried = self._plans.tried(graph, planned=planned)
        self._tried = graph, planned, tried
        return tried

    def note_tried(self, captured: Captured, tried: frozenset[Extra], *, best: VariantPlan | None = None) -> None:
        """Note what was found to be slower than the plan that was stored last, or than PyTorch without one.

        Nothing is noted where the `best` is a plan that is not stored: later processes do not have it.
        """
        if best is not None and best not in self._stored:
            return
        plan = best or next(reversed(self._stored), None)
        graph, planned = captured.graph if plan is None else plan.unfused, plan is not None
        if self._tried != (graph, planned, tried):
            self._tried = graph, planned, tried
            self._plans.note_tried(graph, tried, planned=planned)
