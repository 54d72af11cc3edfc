"""What an op waits for because of its cores, where a plan is followed by its order and not by its times."""

from __future__ import annotations

from collections.abc import Collection

from threadcast.core.plan import Placement


class CoreOrder:
    """Goes through the placements of a plan in order of start, and tells what each op waits for on its cores.

    That is the last op before it on each of its hardware threads. On the other hardware threads of its cores it is the
    last one that the plan finishes before this op starts: ops that share a core slow each other down, so only those
    that the plan has side by side may run side by side. All waits are for ops before, so there is no deadlock.
    """

    def __init__(self) -> None:
        self._last: dict[int, dict[int, list[tuple[int, float]]]] = {}
        """By core and hardware thread, the last ops and their finish in seconds: from the last one that had finished at
        the start of the newest. As starts only grow, nothing waits for those before."""

    def next(self, op: int, placed: Placement, hardware_threads: Collection[int]) -> set[int]:
        """Return the ops that `op`, the next in order, waits for; it has these hardware threads of each of its cores.

        Its predecessors, and ops that have certainly finished before those returned, are not among them.
        """
        waits: set[int] = set()
        for core in placed.cores:
            last = self._last.setdefault(core, {})
            for number, ops in last.items():
                finished = [i for i, (_, finish_s) in enumerate(ops) if finish_s <= placed.start_s]
                if number in hardware_threads:
                    waits.add(ops[-1][0])
                elif finished:
                    waits.add(ops[finished[-1]][0])
                del ops[: finished[-1] if finished else 0]
            for number in hardware_threads:
                last.setdefault(number, []).append((op, placed.finish_s))
        return waits
