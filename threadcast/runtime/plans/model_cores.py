"""The cores of optimised models: all that their process may use, or the part that the user asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, RLock
from weakref import WeakKeyDictionary

from threadcast.core import Core, Machine, read_machine
from threadcast.core.arguments import check
from threadcast.threads.openmp import undo_binding
from threadcast.threads.process_cores import ProcessCores

Cores = int | Iterable[int] | None
"""Which cores a model is to use: so many, those of these CPU numbers, or all that the process may use."""

UNCHANGED_S = 5.0
"""Seconds for which the cores must have stayed the same before a model is measured anew for them: an arbiter tries
divisions for some seconds, and measuring takes many steps."""


class ModelCores:
    """The cores of a model that was optimised for `machine`: all cores of its `process`, or those that `resize` chose.

    `changed` is called with the new cores whenever they change, from any thread. `most` is the largest number of cores
    that the model may have (None: as many as the process has). `now` returns seconds. The model was measured on
    `machine` and has no plans for more cores than that; `has_more` says that there are more, `adopt` makes them its
    machine.
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
        """The cores that the model has now."""
        self.whole = True
        """Whether `cores` are all cores of the machine on which the model was measured."""
        process.subscribe(self._process_changed)
        if process.cpus is not None:
            self._update()

    @property
    def has_more(self) -> bool:
        """Whether the model has more cores than the machine on which it was measured."""
        return len(self.cores) > len(self._machine)

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """The CPUs of the machine where the user has asked for some of the process's cores only; None elsewhere."""
        if self._most is None and self._asked is None:
            return None
        cpus = {cpu for core in self._machine.cores for cpu in core.cpus}
        of_process = read_machine(affinity=self._process.cpus).cores  # under a quota fewer than the mask allows
        return None if cpus >= {cpu for core in of_process for cpu in core.cpus} else tuple(sorted(cpus))

    @property
    def unchanged(self) -> bool:
        """Whether the model has had the same cores for `UNCHANGED_S`."""
        return self._now() - self._since_s >= UNCHANGED_S

    def resize(self, cores: Cores) -> Sequence[Core]:
        """Use this number of cores, or the cores of these CPU numbers; None: all that the process has.

        Returns the cores in use from then on. InvalidInput for no core, for more cores than there are, and for CPUs
        that the process may not use.
        """
        with self._lock:
            available = self._available()
            if isinstance(cores, int) and not isinstance(cores, bool):
                check(1 <= cores <= len(available), "cores", cores, f"from 1 to the {len(available)} that there are")
                self._asked = cores
            elif cores is None:
                self._asked = None
            else:
                self._asked = cpus_among(cores, available)
            self._update()
            return self.cores

    def pass_to(self, receiver: Callable[[Sequence[Core]], None]) -> None:
        """Call `receiver` with the cores that the model has now; they do not change during the call."""
        with self._lock:
            receiver(self.cores)

    def adopt(self) -> Machine:
        """Return a machine of the cores that the model has now. From here on the model counts as measured on it."""
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
        """At most `most` cores of the process: first those of the machine, with its core numbers, then others."""
        of_process = self._process.cpus
        machine = self._first if of_process is None else read_machine(affinity=of_process)
        found = [core.cpus for core in machine.cores]
        known = {core.cpus: core for core in self._machine.cores}
        new = [cpus for cpus in found if cpus not in known]
        first = max(core.id for core in self._machine.cores) + 1
        others = [Core(first + i, cpus, group=0) for i, cpus in enumerate(new)]
        return ([known[cpus] for cpus in found if cpus in known] + others)[: self._most]


def cpus_among(cores: object, available: Sequence[Core]) -> frozenset[int]:
    """Return the CPUs that `cores` names. InvalidInput for what names none, and for other CPUs than the available."""
    has = {cpu for core in available for cpu in core.cpus}
    try:
        cpus: frozenset[int] = frozenset(cores)  # type: ignore[call-overload]
    except TypeError:
        cpus = frozenset()
    check(cpus and cpus <= has, "cores", cores, f"a number of cores, or CPUs of these that may be used: {sorted(has)}")
    return cpus


class CoreChoice:
    """The models of a process that use only some of its cores. Safe to use from several threads.

    A model that asks for a number of cores gets those that the fewest others use, so that the steps of two models with
    half of the cores each run at the same time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._models: WeakKeyDictionary[ModelCores, object] = WeakKeyDictionary()
        """Cores in use, each with the model that they count for; None: one of their own."""

    def add(self, cores: ModelCores, *, model: object = None) -> None:
        """Take note of the cores of a model for as long as they live, or until they are removed.

        Those of several graphs of one `model`, which is kept alive, count once.
        """
        with self._lock:
            self._models[cores] = model

    @contextmanager
    def reserving(self, machine: Machine, *, model: object) -> Iterator[None]:
        """Within the context, count the cores of `machine` for a model, whose own are being made."""
        cores = ModelCores(machine, lambda _: None, ProcessCores())
        self.add(cores, model=model)
        try:
            yield
        finally:
            self.remove(cores)

    def remove(self, cores: ModelCores) -> bool:
        """Forget the cores of a model, which does not use them for now; return whether they were known."""
        with self._lock:
            known = cores in self._models
            self._models.pop(cores, None)
            return known

    def machine(self, cores: Cores) -> Machine:
        """Return the machine of these cores, the fastest first, on which OpenMP keeps no thread to one of them.

        InvalidInput for a number that is not from 1 to that of the usable cores, and for CPUs that are not usable.
        """
        undo_binding()
        if cores is None:
            return read_machine()
        whole = read_machine()
        if isinstance(cores, bool) or not isinstance(cores, int):
            return read_machine(affinity=cpus_among(cores, whole.cores))
        if not 1 <= cores < len(whole):
            return read_machine(cores=cores)
        with self._lock:
            models = [(id(own if model is None else model), own.cores) for own, model in self._models.items()]
        uses = Counter(cpu for _, cpu in {(model, cpu) for model, own in models for core in own for cpu in core.cpus})
        free_first = sorted(whole.cores, key=lambda core: (max(uses[cpu] for cpu in core.cpus), core.id))
        return read_machine(affinity=[cpu for core in free_first[:cores] for cpu in core.cpus])


_choice = CoreChoice()


def core_choice() -> CoreChoice:
    """Return the process's."""
    return _choice
