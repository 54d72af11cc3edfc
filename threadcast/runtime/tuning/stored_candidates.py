"""The plans of one call that are stored for later processes."""

from __future__ import annotations

from collections.abc import Mapping

from threadcast.capture.capture import Captured
from threadcast.core import Machine, Plan
from threadcast.runtime.fusion.fuse import fused
from threadcast.runtime.plans.malleable_plan import counts_below
from threadcast.runtime.plans.plan_store import PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuning.contender import Candidate
from threadcast.scheduler.policies import Problem


class StoredCandidates:
    """Reads and writes candidates of one call in `plans`, with their plans for fewer cores.

    `call` identifies the call in the store.
    """

    def __init__(self, plans: PlanStore, machine: Machine, *, call: object) -> None:
        self._plans, self._machine, self._call = plans, machine, call
        self._step_s: dict[Candidate, float] = {}
        """Seconds of a step of each candidate that is stored."""
        self._fewer: dict[Candidate, Mapping[int, Plan]] = {}
        """Plans for fewer cores, by number of cores, that were made since the candidate was."""

    def read(self, captured: Captured, memory_format: MemoryFormat) -> tuple[Candidate, float] | None:
        """Return the candidate stored for this graph, and the seconds that one of its steps took.

        None where there is none in this memory format; ThreadcastError where the stored plan does not fit the graph.
        """
        stored = self._plans.read(captured.graph)
        if stored is None or stored.memory_format != memory_format:
            return None
        planned = (fused(captured) if stored.fused else None) or captured
        problem = None if stored.curves is None else Problem(planned.graph, stored.curves, self._machine)
        variant = Variant(stored.memory_format, stored.fused)
        candidate = Candidate(variant, planned, stored.plan, captured.graph, problem, stored.fewer)
        self._step_s[candidate] = stored.step_s
        return candidate, stored.step_s

    def write(self, candidate: Candidate, step_s: float) -> None:
        """Store a candidate whose steps take `step_s` seconds."""
        self._step_s[candidate] = step_s
        fewer, variant = self.fewer(candidate), candidate.variant
        missing = not set(counts_below(len(self._machine))) <= set(fewer)
        curves = candidate.problem.curves if candidate.problem is not None and missing else None
        stored = StoredPlan(candidate.plan, variant.memory_format, step_s, variant.fused, fewer, curves)
        self._plans.write(self._call, candidate.unfused, stored)

    def drop(self, captured: Captured) -> None:
        """Delete what is stored for a graph without fused operators."""
        self._plans.drop(captured.graph)

    def fewer(self, candidate: Candidate) -> Mapping[int, Plan]:
        """The known plans of a candidate for fewer cores, by number of cores."""
        return self._fewer.get(candidate, candidate.fewer)

    def add_fewer(self, candidate: Candidate, fewer: Mapping[int, Plan]) -> None:
        """Remember all plans of a candidate for fewer cores; store them where the candidate is stored."""
        self._fewer[candidate] = fewer
        if candidate in self._step_s and fewer.keys() != candidate.fewer.keys():
            self.write(candidate, self._step_s[candidate])
