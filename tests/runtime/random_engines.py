"""Engines that run graphs by random plans of one lane and of several, on some of this machine's cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, read_machine
from threadcast.core.errors import ExecutionError, InvalidInput, PlanError
from threadcast.runtime.engine.engine import Engine


class Refused(Exception):
    """An engine cannot run such a graph, as with complex numbers, or such a plan, and says why."""


@dataclass(frozen=True, slots=True)
class RandomEngine:
    """Makes an engine with a random plan of one lane or of several. Refused where it cannot run the graph."""

    one_lane: bool
    seed: int
    machine: Machine

    @property
    def name(self) -> str:
        """The engine's lanes, in words."""
        return "one lane" if self.one_lane else "several lanes"

    def __call__(self, captured: Captured) -> Engine:
        cores = tuple(core.id for core in self.machine.cores)
        cores = cores[:1] if self.one_lane else cores
        plan = make_random_plan(captured.graph, cores, seed=self.seed, max_factor=1 if self.one_lane else 2)
        try:
            return Engine(captured, plan, self.machine)
        except (ExecutionError, InvalidInput, PlanError) as error:
            raise Refused(str(error)) from error


@dataclass(frozen=True, slots=True)
class RandomEngines:
    """Engines on `machine` with a plan of one lane and with one of several; with `all_lanes` both use all cores."""

    machine: Machine
    all_lanes: bool = False

    def both(self, seed: int) -> list[RandomEngine]:
        """An engine of one lane and one of several, of which the seed says which comes first."""
        return [
            RandomEngine((seed + number) % 2 == 0 and not self.all_lanes, seed, self.machine) for number in range(2)
        ]

    def one(self, seed: int, captured: Captured) -> Engine:
        """One of the engines for a graph, by the seed."""
        return self.both(seed)[0](captured)


@contextmanager
def random_engines(cores: int) -> Iterator[RandomEngines]:
    """Engines on up to so many of this machine's cores, until the end of the block."""
    machine = read_machine()
    yield RandomEngines(machine.limited_to([core.id for core in machine.cores[:cores]]))
