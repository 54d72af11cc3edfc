"""Engines that run graphs by random plans, on some of this machine's cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, read_machine
from threadcast.core.errors import ExecutionError, InvalidInput, PlanError
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.executors import Executors
from threadcast.runtime.engine.native.engine import NativeEngine
from threadcast.runtime.engine.python_engine import PythonEngine

Kind = Literal["native", "python"]
KINDS: tuple[Kind, ...] = ("native", "python")


class Refused(Exception):
    """An engine cannot run such a graph, as with complex numbers, or such a plan, and says why."""


@dataclass(frozen=True, slots=True)
class RandomEngine:
    """Makes one of the engines with a random plan of one lane or of several. Refused where it cannot run the graph."""

    kind: Kind
    one_lane: bool
    seed: int
    machine: Machine
    executors: Executors

    @property
    def name(self) -> str:
        """The engine and its lanes, in words."""
        return f"{self.kind} engine, {'one lane' if self.one_lane else 'several lanes'}"

    def __call__(self, captured: Captured) -> Engine:
        cores = tuple(core.id for core in self.machine.cores)
        cores = cores[:1] if self.one_lane else cores
        plan = make_random_plan(captured.graph, cores, seed=self.seed, max_factor=1 if self.one_lane else 2)
        try:
            if self.kind == "python":
                return PythonEngine(captured, plan, self.machine, executors=self.executors)
            return NativeEngine(captured, plan, self.machine)
        except (ExecutionError, InvalidInput, PlanError) as error:
            raise Refused(str(error)) from error


@dataclass(frozen=True, slots=True)
class RandomEngines:
    """Both engines on `machine`; `executors` are the Python engine's threads. Without `native`, that engine only.

    One of the two runs a plan of one lane and the other one of several; with `all_lanes` both use all cores.
    """

    machine: Machine
    executors: Executors
    native: bool
    all_lanes: bool = False

    def both(self, seed: int) -> list[RandomEngine]:
        """Both engines, the Python engine last; the seed says which has a plan of one lane."""
        return [
            RandomEngine(kind, (seed + number) % 2 == 0 and not self.all_lanes, seed, self.machine, self.executors)
            for number, kind in enumerate(KINDS)
            if self.native or kind == "python"
        ]

    def one(self, seed: int, captured: Captured) -> Engine:
        """One of the engines for a graph, by the seed; the Python engine where the native one refuses."""
        *native, python = self.both(seed // 4)
        for engine in native if seed % 4 else ():
            with suppress(Refused):
                return engine(captured)
        return python(captured)


@contextmanager
def random_engines(cores: int, *, native: bool) -> Iterator[RandomEngines]:
    """Both engines on up to so many of this machine's cores, until the end of the block."""
    machine = read_machine()
    machine = machine.limited_to([core.id for core in machine.cores[:cores]])
    with closing(Executors(machine)) as executors:
        yield RandomEngines(machine, executors, native)
