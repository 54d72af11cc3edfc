"""Keeps the running plan on the cores that the model has now: fewer, others, or all of them again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from weakref import ref

from threadcast.core import Core, Machine, Plan
from threadcast.core.errors import ThreadcastError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.plans.malleable_plan import MalleablePlan
from threadcast.runtime.tuner.call_plans import CallPlans
from threadcast.runtime.tuner.candidate import VariantPlan
from threadcast.threads.this_process import this_process

_logger = logging.getLogger("threadcast")


class CoreFollower:
    """Keeps the engine of the running plan on the cores that were set last. Safe to use from any thread."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cores: Sequence[Core] = machine.cores
        self._spares = False
        self._malleable: MalleablePlan | None = None
        self._lock = Lock()

    @property
    def active(self) -> bool:
        """Whether there is an engine that follows the cores."""
        return self._malleable is not None

    @property
    def all_cores(self) -> bool:
        """Whether the engine has as many cores as its plan was made for; true also where no engine follows."""
        return self._malleable is None or self._malleable.whole

    def resize(self, cores: Sequence[Core]) -> None:
        """Use these cores from the next operator on."""
        with self._lock:
            self._cores = cores
            self._apply()

    def spare(self, spares: bool) -> None:
        """Leave the last of these cores to what computes beside the plan, where it `spares` one."""
        if spares != self._spares:
            with self._lock:
                self._spares = spares
                self._apply()

    def follow(self, engine: Engine, variant_plan: VariantPlan, stored: CallPlans) -> None:
        """Keep `engine`, which runs this plan, on the cores that were set last; for the others see `MalleablePlan`.

        `stored` has the plans for fewer cores that are known, and takes those that are made.
        """
        whole, weak = len(self._machine), ref(stored)  # a model that is dropped ends its planning, not the reverse

        def note(fewer: Mapping[int, Plan]) -> None:
            if (call_plans := weak()) is None:
                return
            if fewer:
                plans = {**fewer, whole: variant_plan.plan}
                this_process().steps.expect({cores: 1 / plan.makespan_s for cores, plan in plans.items()})
            call_plans.add_fewer(variant_plan, fewer)

        with self._lock:
            self._malleable = MalleablePlan(
                engine, variant_plan.plan, self._machine, variant_plan.problem, variant_plan.fewer, done=note,
                wanted=lambda: weak() is not None,
            )  # fmt: skip
            self._apply()

    def end(self, *, restore: bool) -> None:
        """Stop following. With `restore` the engine gets all cores back, as comparisons of whole plans need."""
        with self._lock:
            malleable = self._release(restore=restore)
        if malleable is not None:
            malleable.close()  # without the lock: whoever takes cores away must not wait for a planner to end

    def _apply(self) -> None:
        if self._malleable is None:
            return
        try:
            self._malleable.resize(self._cores[: max(1, len(self._cores) - self._spares)])
        except ThreadcastError as error:
            _logger.warning("a plan does not follow the cores: %s", error)
            if (malleable := self._release(restore=True)) is not None:
                malleable.close()

    def _release(self, *, restore: bool) -> MalleablePlan | None:
        malleable, self._malleable = self._malleable, None
        if malleable is not None and restore:
            try:
                malleable.resize(self._machine.cores)
            except ThreadcastError as error:
                _logger.warning("a plan stays with the cores that it has: %s", error)
        return malleable
