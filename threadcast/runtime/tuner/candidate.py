"""What can run a call and is compared with others: PyTorch, a plan of one variant of its graph, or a backend.

A `Candidate` is prepared in parts, run, and closed (plans are in `plan_candidate`). What runs calls is a `Way`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Protocol

from threadcast.capture.graph.captured import Captured
from threadcast.core import Machine, OpGraph, Plan
from threadcast.runtime.engine.engine import Engine, lender
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.events import LeftOut, Ready, Staged
from threadcast.scheduler.policies import Problem
from threadcast.threads.openmp import end_idle_workers

Run = Callable[..., Any]
"""Runs one whole step of the caller and returns the step's result."""


class Kind(Enum):
    """The kinds of candidates."""

    DEFAULT = "default"
    """The caller's own function or step, as it runs without threadcast."""
    PLAN = "plan"
    """A plan, run by an engine."""
    EAGER = "eager"
    """The default in another memory format."""
    BACKEND = "backend"
    """The whole model on another runtime."""


@dataclass(frozen=True, slots=True)
class CandidateId:
    """Identifies a candidate; `str` returns the name that reports print.

    Only a plan has a `variant`, only eager PyTorch a `memory_format`, only a backend a `backend`: its name and setting.
    """

    kind: Kind
    variant: Variant | None = None
    memory_format: MemoryFormat | None = None
    backend: str = ""

    def __str__(self) -> str:
        details = {Kind.PLAN: self.variant, Kind.EAGER: self.memory_format}
        if self.kind is Kind.BACKEND:
            return self.backend
        return f"{self.kind.value}, {details[self.kind]}" if self.kind in details else self.kind.value


DEFAULT = CandidateId(Kind.DEFAULT)


def plan_of(variant: Variant) -> CandidateId:
    """Return the id of the best plan of this variant."""
    return CandidateId(Kind.PLAN, variant=variant)


def eager_in(memory_format: MemoryFormat) -> CandidateId:
    """Return the id of the default with its tensors in this memory format."""
    return CandidateId(Kind.EAGER, memory_format=memory_format)


def backend(name: str) -> CandidateId:
    """Return the id of the backend of this name."""
    return CandidateId(Kind.BACKEND, backend=name)


@dataclass(slots=True, eq=False)
class VariantPlan:
    """A plan for one variant of a call's graph."""

    variant: Variant
    captured: Captured
    """The graph that the plan is for."""
    plan: Plan
    unfused: OpGraph
    """The graph as it was captured, by PyTorch's operators alone."""
    problem: Problem | None = None
    """The problem that the plan was made from; None where it is not known."""
    fewer: Mapping[int, Plan] = field(default_factory=dict)
    """Known plans for fewer cores, by number of cores."""


_ALWAYS: Callable[[], bool] = partial(bool, 1)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Way:
    """What a prepared candidate runs calls by. `holds()` returns whether its results are still valid:
    False once something that it took for constant has changed. `gain` is the ratio of PyTorch's seconds to its own that
    another process has found; None: not known. `own_threads`: it does not compute on OpenMP's. `engine` is what runs a
    plan; None: it is none."""

    id: CandidateId
    run: Run
    holds: Callable[[], bool] = _ALWAYS
    gain: float | None = None
    own_threads: bool = False
    engine: Engine | None = None

    @property
    def name(self) -> str:
        """The name in reports."""
        return str(self.id)


class Backends(Protocol):
    """A search for further ways beside the caller's steps, such as `backends.search.BackendSearch`."""

    @property
    def over(self) -> bool:
        """Whether `poll` will return no more ways."""
        ...

    @property
    def working(self) -> bool:
        """Whether it still computes beside the calls."""
        ...

    @property
    def broken_off(self) -> bool:
        """Whether something ended the search that need not end a later one."""
        ...

    def start(self) -> None:
        """Start the search."""
        ...

    def poll(self, *, unlimited: bool = False) -> Way | None:
        """Return a way that is new and ready to run; None where there is none yet.

        `unlimited`: the caller waits for the search, so that it may take any time.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Let it work, and return when `poll` has something to do, or after `timeout_s` seconds."""
        ...

    @property
    def has_turn(self) -> bool:
        """Whether it can work now: other processes' searches may be at work in its place."""
        ...

    def rest(self, rests: bool) -> None:
        """Let it work beside the caller, or `rest` while that computes."""
        ...

    def close(self) -> None:
        """End the search; ways that it returned go on."""
        ...


class MakeBackends(Protocol):
    """Makes a search for backends; None where one cannot begin yet.

    `captured` is the graph in the memory format that the model was given in. `arguments` are
    those of a step, and `result` is its result.
    """

    def __call__(self, captured: Captured, arguments: tuple[Any, ...], result: Any) -> Backends | None: ...


@dataclass(frozen=True, slots=True)
class Calls:
    """What is known of calls when a part of a preparation comes: seconds of one by the best way, and by PyTorch.

    `other`: something else is faster than PyTorch, or can be planned.
    """

    best_s: float | None
    eager_s: float | None
    other: bool


class Candidate(ABC):
    """One way to run a call, by its key. `prepare` does what comes between calls, and `stage` says what comes next."""

    def __init__(self, key: CandidateId, way: Way | None = None) -> None:
        self.key, self.way = key, way
        """`way` runs calls; None where it is not prepared, or was closed."""

    @property
    def works(self) -> bool:
        """Whether something is at work for it beside calls."""
        return False

    @abstractmethod
    def stage(self, calls: Calls) -> Staged | Ready | LeftOut:
        """Return what comes next."""

    def prepare(self, calls: Calls) -> None:  # noqa: B027 - most need nothing
        """Do the part of the preparation that comes between two calls."""

    def poll(self, calls: Calls) -> bool:
        """Look at what works beside calls for it; return whether it has come to its end."""
        return False

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what it holds. One that can be prepared again may run later."""


class EagerCandidate(Candidate):
    """PyTorch: `default` runs a call in the memory format that `model_format` has set. It holds nothing."""

    def __init__(self, default: Run, model_format: ModelFormat, memory_format: MemoryFormat) -> None:
        def run(*arguments: Any) -> Any:
            model_format.set(memory_format)
            return default(*model_format.arguments(arguments))

        key = DEFAULT if memory_format is MemoryFormat.AS_GIVEN else eager_in(memory_format)
        super().__init__(key, Way(key, run))

    def stage(self, calls: Calls) -> Ready:
        """It is ready."""
        return Ready(self.key)


class BackendCandidate(Candidate):
    """What a search has `found`, in the memory format as given: PyTorch runs calls that a backend may not.

    Where it has threads of its own, OpenMP's spin beside them: a call by OpenVINO took 1.7 times as long after an
    operator of PyTorch's, and now and then the kernel left the caller and OpenMP's worker on one core for seconds,
    where operators took 30 to 60 times as long. The engines' threads have cores of their own, and sleep.
    """

    def __init__(self, found: Way, model_format: ModelFormat, machine: Machine) -> None:
        lend: Callable[[], None] = lender(machine)

        def run(*arguments: Any) -> Any:
            model_format.set(MemoryFormat.AS_GIVEN)
            if found.own_threads:
                end_idle_workers()
            try:
                return found.run(*arguments)
            finally:
                lend()

        super().__init__(found.id, replace(found, run=run))

    def stage(self, calls: Calls) -> Ready | LeftOut:
        """It is ready until it was closed."""
        return LeftOut(self.key, "it was released") if self.way is None else Ready(self.key)

    def close(self) -> None:
        """Release the backend, which cannot be opened again."""
        self.way = None
