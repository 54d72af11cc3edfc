"""The plans of one call that are being made, by variant of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, OpGraph
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.step_feedback import StepFeedback
from threadcast.runtime.plans.step_rows import Observed
from threadcast.runtime.plans.variant import Variant
from threadcast.runtime.tuner.contender import VariantPlan
from threadcast.runtime.tuner.plan_maker import PlanMaker, Planner
from threadcast.runtime.tuner.variant_graphs import VariantGraphs


class VariantPlans:
    """Makes plans of the variants in `graphs` for `machine`.

    `planner` makes plans of all calls of the model. `model_format` sets the order of the model's tensors in memory
    before each step of a search. `store` is the URL of a store of what is known of operators on this machine;
    `feedback` adds to it what looks have shown.
    """

    def __init__(
        self, graphs: VariantGraphs, machine: Machine, model_format: ModelFormat, *, planner: Planner,
        store: str | None = None, feedback: StepFeedback | None = None,
    ) -> None:  # fmt: skip
        self.graphs, self.planner = graphs, planner
        self._machine, self._format, self._store, self._feedback = machine, model_format, store, feedback
        self.makers: dict[Variant, PlanMaker] = {}
        """What makes the plans of each variant that is being searched."""
        self._looked: list[tuple[OpGraph, Mapping[str, Observed]]] = []
        """What looks have shown of graphs, and was not given back yet."""

    def begin(self, variant: Variant, captured: Captured) -> None:
        """Begin to make plans of `captured`, the graph of `variant`."""
        self.planner.begin(self)
        before = partial(self._format.set, variant.memory_format)
        self.makers[variant] = PlanMaker(
            captured, self._machine, planner=self.planner, store=self._store, before=before
        )  # fmt: skip

    def take(self, variant: Variant, number: int) -> tuple[VariantPlan, Engine | None]:
        """End the search of `variant` with its plan of this number; return that, and the open engine that has tried it.

        None where it was not tried.
        """
        maker = self.makers.pop(variant)
        engine = maker.handed_over(number)
        maker.close()
        if self._feedback is not None:
            self._looked.append((maker.captured.graph, maker.observed))
        planned = maker.plans[number]
        unfused = self.graphs.as_captured(variant).graph
        return VariantPlan(variant, maker.captured, planned.plan, unfused, planned.problem), engine

    def leave_out(self, variant: Variant) -> None:
        """End the search of `variant`, if it goes on, without a plan."""
        if (maker := self.makers.get(variant)) is not None:  # else it was interrupted, and is done again
            maker.close()
            self.makers.pop(variant, None)

    @property
    def have_looked(self) -> bool:
        """Whether looks have shown something that was not given back yet, and nothing is being stored."""
        return self._feedback is not None and bool(self._looked) and not self._feedback.working

    def give_back(self) -> None:
        """Have stored what looks have shown."""
        if self._feedback is not None:
            self._feedback.add_looks(self._looked)
            self._looked.clear()

    def rest(self) -> None:
        """Take note that no plan will be asked for soon; the planning process ends where no other call needs it."""
        self.planner.done(self)

    def close(self) -> None:
        """End all searches, and the planning process where no other call needs it."""
        for maker in self.makers.values():
            maker.close()
        self.makers.clear()
        self.rest()
