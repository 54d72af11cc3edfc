"""Chooses the cores of an optimised model where it is to use only some of the process's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

from threadcast.core import Machine, read_machine
from threadcast.runtime.plans.model_cores import ModelCores, cpus_among
from threadcast.threads.openmp import undo_binding
from threadcast.threads.process_cores import ProcessCores

Cores = int | Iterable[int] | None
"""Which cores a model is to use: so many, those of these CPU numbers, or all that the process may use."""


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
