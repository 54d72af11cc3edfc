"""Which cores each op gets and when (`Plan`), and what happened when it ran (`Trace`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, checked, finite, member, number, read_json
from threadcast.core.json_writing import write_json


@dataclass(frozen=True, slots=True)
class Placement:
    """One op on its cores from start to finish.

    `cores` are core ids. Each core runs one of the `threads`; where there are more threads than cores, the rest use the
    cores' further hardware threads. `start_s` and `finish_s` are seconds from the start of the step. `hardware_thread`
    is the hardware thread of each core that the op occupies: 0 for an op alone, 1 for an op that hyper-threading puts
    beside another (Liu et al. 2018, strategy 4). InvalidInput for values that cannot be.
    """

    id: str
    cores: tuple[int, ...]
    threads: int
    start_s: float
    finish_s: float
    hardware_thread: int = 0

    def __post_init__(self) -> None:
        if not self.cores or len(set(self.cores)) != len(self.cores):
            raise InvalidInput(f"op {self.id!r}: cores={self.cores} must be distinct and at least one")
        if self.hardware_thread < 0:
            raise InvalidInput(f"op {self.id!r}: hardware_thread={self.hardware_thread} must be at least 0")
        if self.threads < 1:
            raise InvalidInput(f"op {self.id!r}: threads={self.threads} must be at least 1")
        if not 0 <= self.start_s <= self.finish_s < float("inf"):
            raise InvalidInput(f"op {self.id!r}: start_s={self.start_s} and finish_s={self.finish_s} are out of order")

    @property
    def duration_s(self) -> float:
        """Seconds from start to finish."""
        return self.finish_s - self.start_s

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the op in a plan file."""
        document = {
            "id": self.id, "cores": list(self.cores), "threads": self.threads,
            "start_s": self.start_s, "finish_s": self.finish_s,
        }  # fmt: skip
        return {**document, "hardware_thread": self.hardware_thread} if self.hardware_thread else document

    @classmethod
    def from_json(cls, document: Any, *, pointer: str) -> Placement:
        """Read what `to_json` writes; FormatError with a JSON pointer below `pointer` to whatever is wrong."""
        cores = member(document, "cores", list, pointer=pointer)
        if any(not isinstance(core, int) or isinstance(core, bool) for core in cores):
            raise FormatError(f"cores must be integers, got {cores!r}", pointer=f"{pointer}/cores")
        return checked(
            lambda: cls(
                member(document, "id", str, pointer=pointer),
                tuple(cores),
                member(document, "threads", int, pointer=pointer),
                number(document, "start_s", pointer=pointer),
                number(document, "finish_s", pointer=pointer),
                member(document, "hardware_thread", int, pointer=pointer, default=0),
            ),
            pointer=pointer,
        )


@dataclass(frozen=True, slots=True)
class _Schedule(ABC):
    """The common part of a plan and a trace: each op placed once, in order of start, on at most `cores` cores."""

    cores: int
    policy: str
    ops: tuple[Placement, ...]

    def __post_init__(self) -> None:
        if self.cores < 1:
            raise InvalidInput(f"cores={self.cores}: a schedule needs at least 1")
        object.__setattr__(self, "ops", tuple(sorted(self.ops, key=lambda op: op.start_s)))
        if len(self.by_id()) != len(self.ops):
            ((twice, _),) = Counter(op.id for op in self.ops).most_common(1)
            raise InvalidInput(f"op {twice!r} is placed twice; a step runs each op once")
        used = {core for op in self.ops for core in op.cores}
        if len(used) > self.cores:
            raise InvalidInput(f"the ops use {len(used)} different cores, more than cores={self.cores}")

    @property
    def makespan_s(self) -> float:
        """Finish of the last op, in seconds from the start of the step."""
        return max((op.finish_s for op in self.ops), default=0.0)

    @property
    def busy_share(self) -> float:
        """Used core-seconds over available ones, from 0 to 1 (without ops on further hardware threads)."""
        used = sum(len(op.cores) * op.duration_s for op in self.ops if op.hardware_thread == 0)
        return used / (self.cores * self.makespan_s) if self.makespan_s else 0.0

    def by_id(self) -> dict[str, Placement]:
        """Placements by op id."""
        return {op.id: op for op in self.ops}

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The document of the schema `SCHEMA`."""

    @classmethod
    @abstractmethod
    def from_json(cls, document: Any) -> Self:
        """Read what `to_json` writes; FormatError with a JSON pointer to whatever is wrong."""

    def write(self, path: Path | str) -> None:
        """Write the JSON form to `path`."""
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read the JSON form from `path`; FormatError where it has another form, OSError where it cannot be read."""
        return read_json(path, cls.from_json)


@dataclass(frozen=True, slots=True)
class Plan(_Schedule):
    """When and where each op is to run, with a lower bound on the makespan of any plan.

    `lower_bound_s`, in seconds, holds for every schedule of these curves on these cores that puts one op at a time on a
    core; where the plan uses hyper-threads, also for schedules that use them. `guarded` are the ids of ops that a guard
    returned to the framework's default; threadcast itself leaves it empty and only passes it on.
    """

    lower_bound_s: float = 0.0
    guarded: tuple[str, ...] = ()
    curves_from: str = ""
    """Source of the curves: "model@version", "local" or "file"."""

    SCHEMA: ClassVar[str] = "threadcast.plan/1"

    @property
    def gap(self) -> float | None:
        """Makespan over lower bound, less one; None where the bound is 0."""
        return self.makespan_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else None

    def on(self, cores: Mapping[int, int]) -> Self:
        """The same plan on other cores; `cores` maps each core id of the plan to the one in its place."""
        moved = tuple(replace(op, cores=tuple(cores[core] for core in op.cores)) for op in self.ops)
        return replace(self, ops=moved)

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.plan/1`."""
        return {
            "schema": self.SCHEMA, "cores": self.cores, "policy": self.policy, "makespan_s": self.makespan_s,
            "lower_bound_s": self.lower_bound_s, "gap": self.gap, "guarded": list(self.guarded),
            "curves_from": self.curves_from, "ops": [op.to_json() for op in self.ops],
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a `threadcast.plan/1` document; FormatError with a JSON pointer to whatever is wrong."""
        check_schema(document, cls.SCHEMA)
        guarded = member(document, "guarded", list, default=[])
        if not all(isinstance(op_id, str) for op_id in guarded):
            raise FormatError(f"guarded must be op ids, got {guarded!r}", pointer="/guarded")
        bound_s = number(document, "lower_bound_s", minimum=0.0, default=0.0)
        source = member(document, "curves_from", str, default="")
        return checked(lambda: cls(*_read_common(document), bound_s, tuple(guarded), source), pointer="/ops")


@dataclass(frozen=True, slots=True)
class Trace(_Schedule):
    """When and where each op ran, in the form of a plan; times are predicted if `simulated`, else measured."""

    simulated: bool = False
    steps: int = field(default=1)
    """Number of steps; each time is the median over them."""

    SCHEMA: ClassVar[str] = "threadcast.trace/1"

    def __post_init__(self) -> None:
        _Schedule.__post_init__(self)  # super() finds no class under slots=True
        if self.steps < 1:
            raise InvalidInput(f"steps={self.steps}: times are medians over at least 1")

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.trace/1`."""
        return {
            "schema": self.SCHEMA, "cores": self.cores, "policy": self.policy, "makespan_s": self.makespan_s,
            "simulated": self.simulated, "steps": self.steps, "ops": [op.to_json() for op in self.ops],
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Read a `threadcast.trace/1` document; FormatError with a JSON pointer to whatever is wrong."""
        check_schema(document, cls.SCHEMA)
        simulated = member(document, "simulated", bool, default=False)
        steps = member(document, "steps", int, default=1)
        return checked(lambda: cls(*_read_common(document), simulated, steps), pointer="/ops")


def _read_common(document: Any) -> tuple[int, str, tuple[Placement, ...]]:
    cores = member(document, "cores", int)
    finite(cores, pointer="/cores", minimum=1)
    entries: Iterable[Any] = member(document, "ops", list)
    ops = tuple(Placement.from_json(op, pointer=f"/ops/{i}") for i, op in enumerate(entries))
    return cores, member(document, "policy", str), ops
