"""Keeps which hardware threads of which cores are in use."""

from __future__ import annotations

from threadcast.core import Machine
from threadcast.core.errors import IllegalLaunch
from threadcast.core.found_by_cores import FoundByCores
from threadcast.scheduler.problem import Launch
from threadcast.scheduler.problem.hardware_threads import hardware_threads


class Occupancy:
    """Assigns hardware threads of cores to launches and releases them; one bit for each core and hardware thread.

    The simulator and the service use it, so that both refuse the same launches.
    """

    def __init__(self, machine: Machine) -> None:
        self._ids = tuple(core.id for core in machine.cores)
        self._bit = {core: 1 << i for i, core in enumerate(self._ids)}
        self._all = (1 << len(self._ids)) - 1
        self._busy: list[int] = []  # by hardware thread: the cores on which it is taken
        self._masks: dict[tuple[int, ...], int] = {}
        self._idle: FoundByCores[int, tuple[int, ...]] = FoundByCores()

    def take(self, launch: Launch) -> None:
        """Mark the hardware threads of `launch` as used; IllegalLaunch, with no change, if one is used or unknown."""
        mask = self._masks.get(launch.cores) or self._checked_mask(launch)
        if launch.threads < len(launch.cores) or launch.hardware_thread < 0:
            raise IllegalLaunch(
                f"threads={launch.threads} on {len(launch.cores)} cores, hardware_thread={launch.hardware_thread}: "
                "a launch has at least one thread a core and counts hardware threads from 0"
            )
        numbers = hardware_threads(launch)
        while len(self._busy) < numbers.stop:
            self._busy.append(0)
        for number in numbers:
            if self._busy[number] & mask:
                in_use = [core for core in launch.cores if self._busy[number] & self._bit[core]]
                raise IllegalLaunch(f"hardware thread {number} of cores {in_use} is taken")
        for number in numbers:
            self._busy[number] |= mask

    def release(self, launch: Launch) -> None:
        """Mark the hardware threads of `launch`, which `take` has marked, as free."""
        mask = self._masks[launch.cores]
        for number in hardware_threads(launch):
            self._busy[number] &= ~mask

    def idle(self) -> tuple[int, ...]:
        """Return the ids of the cores without a used hardware thread, in the machine's order."""
        free = self._all
        for mask in self._busy:
            free &= ~mask
        found = self._idle.get(free)
        if found is None:
            bits = reversed(f"{free:b}")  # read once: a test of each bit would read all of them
            idle = tuple([core for core, bit in zip(self._ids, bits) if bit == "1"])
            found = self._idle.keep(free, idle, ids=len(idle))
        return found

    def _checked_mask(self, launch: Launch) -> int:
        unknown = [core for core in launch.cores if core not in self._bit]
        if unknown or not launch.cores or len(set(launch.cores)) != len(launch.cores):
            what = f"cores {unknown} are not among the machine's" if unknown else "cores must be distinct, at least one"
            raise IllegalLaunch(f"cores={launch.cores}: {what}")
        mask = self._masks[launch.cores] = sum(self._bit[core] for core in launch.cores)
        return mask
