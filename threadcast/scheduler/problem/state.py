"""The state of a schedule at one moment, and a launch, which a policy answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """An op that runs now: its position in the graph, its core ids, thread count, start and predicted finish.

    With more threads than cores it fills that many hardware threads of each core, from `hardware_thread` on.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    start_s: float
    finish_s: float
    """Start plus the predicted seconds of the op alone; in the past when the op takes longer than predicted."""
    hardware_thread: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a policy's decision may depend on; valid during the call of `decide` only.

    `ready` is in ascending order of the policy's `rank`, or in the order in which the ops became ready where it
    sets none; `op in ready` takes constant time in the simulator and the engine.
    """

    now_s: float
    ready: Sequence[int]
    idle: tuple[int, ...]
    """Core ids on which no op runs, in the machine's order."""
    running: tuple[Running, ...]
    finished: Sequence[int] | None = None
    """One entry an op, not 0 where it has finished. None where the caller does not track it: it follows from `ready`
    and `running` (`policies.plan_replay.finished_ops`)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start op `op` now with `threads` threads on `cores`.

    `hardware_thread` 1 puts it beside a running op. `threads` above the number of cores takes further hardware
    threads of each core, and beyond those that the machine has, time slices.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0
