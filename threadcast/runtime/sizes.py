"""Which cores an optimised model has at the moment: of those that its process was given, those that it was asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import RLock

from threadcast.core import Core, Machine, read_machine
from threadcast.core.errors import InvalidInput
from threadcast.threads.process_cores import ProcessCores

STEADY_S = 5.0
"""Seconds for which cores must have stayed the same before a model is measured anew for them: an arbiter tries
divisions for some seconds, and measuring takes steps."""


class Sizes:
    """The cores of a model that was optimised for `machine`; `changed` is called with them, from any thread.

    They are those of its `process`, or of these as many as `resize` asked for. A model uses no more cores than
    `machine` has until it adopts others: `grown` tells that there are more. `most` is the largest number that it may
    have (None: all that the process has).
    """

    def __init__(
        self, machine: Machine, changed: Callable[[Sequence[Core]], None], process: ProcessCores, *,
        most: int | None = None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._first = self._machine = machine
        self._changed, self._process, self._most, self._now = changed, process, most, now
        self._asked: int | frozenset[int] | None = None
        self._lock = RLock()
        self._since_s = now()
        self.cores: Sequence[Core] = machine.cores
        """Those that there are."""
        self.whole = True
        """Whether they are those of `machine`."""
        process.subscribe(self._process_changed)
        if process.cpus is not None:
            self._update()

    @property
    def grown(self) -> bool:
        """Whether there are more than the machine has that the model was measured on."""
        return len(self.cores) > len(self._machine)

    @property
    def steady(self) -> bool:
        """Whether they have been the same for a while."""
        return self._now() - self._since_s >= STEADY_S

    def resize(self, cores: int | Iterable[int] | None) -> Sequence[Core]:
        """Use so many cores, or those of these CPUs, or None: all that the process has; the cores then in use.

        InvalidInput for none, for more than there are, and for CPUs that the process has not.
        """
        with self._lock:
            there = self._there()
            if isinstance(cores, int):
                if isinstance(cores, bool) or not 1 <= cores <= len(there):
                    raise InvalidInput(f"cores={cores!r}: from 1 to the {len(there)} that there are")
                self._asked = cores
            elif cores is None:
                self._asked = None
            else:
                cpus, has = frozenset(cores), {cpu for core in there for cpu in core.cpus}
                if not cpus or not cpus <= has:
                    raise InvalidInput(f"cores={sorted(cpus)}: this process may use CPUs {sorted(has)}")
                self._asked = cpus
            self._update()
            return self.cores

    def tell(self, somebody: Callable[[Sequence[Core]], None]) -> None:
        """Call `somebody` with the cores, in between two changes."""
        with self._lock:
            somebody(self.cores)

    def adopt(self) -> Machine:
        """The machine that the cores there are make up; from now on these are the whole."""
        with self._lock:
            cpus = [cpu for core in self.cores for cpu in core.cpus]
            self._machine = read_machine(affinity=cpus)
            self.cores, self.whole = self._machine.cores, True
            return self._machine

    def _process_changed(self, _: frozenset[int]) -> None:
        with self._lock:
            self._update()

    def _update(self) -> None:
        cores = self._there()
        if isinstance(self._asked, int):
            cores = cores[: self._asked]
        elif self._asked is not None:
            left = [(core, tuple(cpu for cpu in core.cpus if cpu in self._asked)) for core in cores]
            cores = [replace(core, cpus=cpus) for core, cpus in left if cpus] or cores
        if [core.cpus for core in cores] != [core.cpus for core in self.cores]:
            self._since_s = self._now()
            self.cores = tuple(cores)
            self.whole = {core.cpus for core in cores} == {core.cpus for core in self._machine.cores}
            self._changed(self.cores)

    def _there(self) -> list[Core]:
        """The cores of the process, those of the machine first and by its numbers."""
        of_process = self._process.cpus
        machine = self._first if of_process is None else read_machine(affinity=of_process)
        found = [core.cpus for core in machine.cores]
        known = {core.cpus: core for core in self._machine.cores}
        new = [cpus for cpus in found if cpus not in known]
        first = max(core.id for core in self._machine.cores) + 1
        others = [Core(first + i, cpus, group=0) for i, cpus in enumerate(new)]
        return ([known[cpus] for cpus in found if cpus in known] + others)[: self._most]
