"""The cores that an optimised model uses now: those of its process, or as many of them as were asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import RLock

from threadcast.core import Core, Machine, read_machine
from threadcast.core.errors import InvalidInput
from threadcast.threads.process_cores import ProcessCores

UNCHANGED_S = 5.0
"""Seconds for which cores must have stayed the same before a model is measured anew for them: an arbiter tries
divisions for some seconds, and measuring takes steps."""


class ModelCores:
    """The cores of a model that was optimised for `machine`; `changed` is called with new ones, from any thread.

    They are those of its `process`, or of these as many as `resize` asked for. A model uses no more cores than
    `machine` has until it adopts others: `has_more` says that there are more. `most` is the largest number that it may
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
        """Those that it has now."""
        self.whole = True
        """Whether they are those of `machine`."""
        process.subscribe(self._process_changed)
        if process.cpus is not None:
            self._update()

    @property
    def has_more(self) -> bool:
        """Whether it has more cores than the machine on which it was measured."""
        return len(self.cores) > len(self._machine)

    @property
    def unchanged(self) -> bool:
        """Whether it has had the same cores for `UNCHANGED_S`."""
        return self._now() - self._since_s >= UNCHANGED_S

    def resize(self, cores: int | Iterable[int] | None) -> Sequence[Core]:
        """Use so many cores, or those of these CPUs; None: all that the process has. Returns the cores then in use.

        InvalidInput for none, for more than there are, and for CPUs that the process has not.
        """
        with self._lock:
            available = self._available()
            if isinstance(cores, int):
                if isinstance(cores, bool) or not 1 <= cores <= len(available):
                    raise InvalidInput(f"cores={cores!r}: from 1 to the {len(available)} that there are")
                self._asked = cores
            elif cores is None:
                self._asked = None
            else:
                cpus, has = frozenset(cores), {cpu for core in available for cpu in core.cpus}
                if not cpus or not cpus <= has:
                    raise InvalidInput(f"cores={sorted(cpus)}: this process may use CPUs {sorted(has)}")
                self._asked = cpus
            self._update()
            return self.cores

    def pass_to(self, receiver: Callable[[Sequence[Core]], None]) -> None:
        """Call `receiver` with the cores that it has now; they do not change meanwhile."""
        with self._lock:
            receiver(self.cores)

    def adopt(self) -> Machine:
        """Take the cores that it has now for all of its machine, and return that machine."""
        with self._lock:
            cpus = [cpu for core in self.cores for cpu in core.cpus]
            self._machine = read_machine(affinity=cpus)
            self.cores, self.whole = self._machine.cores, True
            return self._machine

    def _process_changed(self, _: frozenset[int]) -> None:
        with self._lock:
            self._update()

    def _update(self) -> None:
        cores = self._available()
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

    def _available(self) -> list[Core]:
        """The cores of the process, those of the machine first and by its numbers."""
        of_process = self._process.cpus
        machine = self._first if of_process is None else read_machine(affinity=of_process)
        found = [core.cpus for core in machine.cores]
        known = {core.cpus: core for core in self._machine.cores}
        new = [cpus for cpus in found if cpus not in known]
        first = max(core.id for core in self._machine.cores) + 1
        others = [Core(first + i, cpus, group=0) for i, cpus in enumerate(new)]
        return ([known[cpus] for cpus in found if cpus in known] + others)[: self._most]
