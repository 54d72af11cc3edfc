"""The state of a schedule at one moment, and a launch, by which a policy starts an op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """An op that is running: its position in the graph, its core ids, thread count, start and predicted finish.

    It uses ceil(threads / cores) hardware threads of each core, from number `hardware_thread` on.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    start_s: float
    finish_s: float
    """Start plus the predicted seconds of the op alone; before now if the op takes longer than predicted."""
    hardware_thread: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that a policy's decision may depend on; valid only during the call of `decide`.

    `ready` are the ops that may start, in ascending order of the policy's `rank`, or, without one, in the order in
    which they became ready. `op in ready` takes constant time in the simulator.
    """

    now_s: float
    ready: Sequence[int]
    idle: tuple[int, ...]
    """Core ids on which no op runs, in the machine's order: all of the problem's machine but those of `running`.

    A runtime whose cores change asks a policy made anew, of a problem with `machine.limited_to(...)`."""
    running: tuple[Running, ...]
    finished: Sequence[int] | None = None
    """One entry for each op, not 0 where the op has finished. None where the caller does not track it; it can be
    computed from `ready` and `running` (`policies.plan_replay.finished_ops`)."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start op number `op` now with `threads` threads on the cores with these ids.

    The op uses the hardware threads of each core from number `hardware_thread` on: with 1, the op runs beside another
    op that uses number 0 of the same cores. With more threads than hardware threads, threads take turns on them.
    """

    op: int
    cores: tuple[int, ...]
    threads: int
    hardware_thread: int = 0
