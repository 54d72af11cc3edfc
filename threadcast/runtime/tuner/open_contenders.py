"""The contenders of one call that are ready to run, with the engines that run plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from threadcast.core import Machine
from threadcast.runtime.engine.engine import Engine, lender
from threadcast.runtime.engine.native.library import return_free_memory
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.contender import DEFAULT, Contender, ContenderId, Run, VariantPlan, eager_in, plan_of
from threadcast.threads.openmp import end_idle_workers


class OpenContenders:
    """The contenders that are ready to run, by id; the default is always among them.

    `default` runs a step in eager PyTorch, in the memory format that `model_format` has set.
    """

    def __init__(self, default: Run, model_format: ModelFormat, machine: Machine) -> None:
        self._default, self._format, self._machine = default, model_format, machine
        self._contenders: dict[ContenderId, Contender] = {}
        self.engines: dict[VariantPlan, Engine] = {}
        """The engines of the plans that are ready to run."""
        self._open_eager(DEFAULT, MemoryFormat.AS_GIVEN)

    def __getitem__(self, contender: ContenderId) -> Contender:
        return self._contenders[contender]

    def open_eager(self, memory_format: MemoryFormat) -> None:
        """Make eager PyTorch in this memory format ready to run."""
        self._open_eager(eager_in(memory_format), memory_format)

    def open_plan(self, variant_plan: VariantPlan) -> bool:
        """Make a plan ready to run; return whether an engine was opened for it, which the plan did not have before."""
        new = variant_plan not in self.engines
        if new:
            self.engines[variant_plan] = Engine(variant_plan.captured, variant_plan.plan, self._machine)
        engine, memory_format = self.engines[variant_plan], variant_plan.variant.memory_format

        def run(*arguments: Any) -> Any:
            self._format.set(memory_format)
            inputs = engine.captured.bind(*arguments)
            return engine.captured.finish(engine.run(inputs), inputs)

        contender = plan_of(variant_plan.variant)
        self._contenders[contender] = Contender(contender, run, engine=engine)
        return new

    def add(self, contender: Contender) -> None:
        """Add a contender that is ready to run, in the format as given: PyTorch runs calls that a backend may not.

        Where it has threads of its own, OpenMP's spin beside them: a call by OpenVINO took 1.7 times as long after an
        operator of PyTorch's, and now and then the kernel left the caller and OpenMP's worker on one core for seconds,
        where operators took 30 to 60 times as long. The engines' threads have cores of their own, and sleep.
        """
        lend = lender(self._machine)

        def run(*arguments: Any) -> Any:
            self._format.set(MemoryFormat.AS_GIVEN)
            if contender.own_threads:
                end_idle_workers()
            try:
                return contender.run(*arguments)
            finally:
                lend()

        self._contenders[contender.id] = replace(contender, run=run)

    def close(self, contender: ContenderId, variant_plan: VariantPlan | None = None) -> None:
        """Forget a contender, and close the engine of its plan."""
        if contender is not DEFAULT:
            self._contenders.pop(contender, None)
        if variant_plan is not None and (engine := self.engines.pop(variant_plan, None)) is not None:
            engine.close()
            return_free_memory()

    def close_all(self) -> None:
        """Forget all contenders but the default, and close all engines."""
        self._contenders = {DEFAULT: self._contenders[DEFAULT]}
        while self.engines:
            self.engines.popitem()[1].close()
        return_free_memory()

    def _open_eager(self, contender: ContenderId, memory_format: MemoryFormat) -> None:
        def run(*arguments: Any) -> Any:
            self._format.set(memory_format)
            return self._default(*self._format.arguments(arguments))

        self._contenders[contender] = Contender(contender, run)
