"""Finds out before each call whether model and optimizer are still as they were when their graph was captured."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from threadcast.capture.graph.optimizers import built_in
from threadcast.capture.guards.objects import attributes_of
from threadcast.capture.guards.unsupported import is_plain
from threadcast.runtime.engine.native.library import loaded_library
from threadcast.runtime.watching.constants import constants_of
from threadcast.runtime.watching.hooks import hook_tables, owner_of_hooks, why_update_apart
from threadcast.runtime.watching.python_values import ReadsWatch

MOST_CLASSES = 100
"""Most classes of arguments that are watched at a time, and so kept alive. A convention."""

MOST_SETTINGS = 32
"""Most combinations of a model's numbers and texts between which it may alternate without a word. A convention."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The state of a model and its optimizer at one moment, as far as captured graphs depend on it."""

    changed: bool
    """Whether a tensor was exchanged or moved in memory since `Watch.renew`, or a Python value that code reads has
    changed since then. Graphs must then be captured anew."""
    hooked: str | None
    """The owner of hooks, in words; a graph would not call them. None where there are no hooks."""
    settings: tuple[Any, ...]
    """Other values that a graph has built in: the modules' numbers and texts that code can read (modes too), which
    tensors are trained, and the optimizer's settings except the numbers that a graph takes as inputs."""
    unsteady: str | None = None
    """Why no graph is used: something changes too often, or cannot be watched. None where neither is so."""
    apart: str | None = None
    """Why the optimizer's own `step` must run, which a graph would not call; None where it need not."""


class Patience:
    """Decides after each look for changes whether a call may be captured, and how many calls need no look.

    A change within `SOON` looks of the last change is a quick one. After the first of a row a call may be captured at
    once; after each further one twice as many looks without a change have to come first. From the change number
    `QUICK_ONES` of a row on, `rest` calls are left alone after it, `LEAST_REST` at first, then twice as many each time:
    a look that finds a change takes milliseconds, as it walks through all that code can read. What the first look after
    that finds may have changed long before, and does not count.
    """

    SOON, QUICK_ONES, LEAST_REST = 50, 6, 256
    _MOST_DOUBLINGS = 20

    def __init__(self) -> None:
        self._row = self._calm = 0
        self.rest = 0
        """Number of calls that need no look from now on; 0 where the next one does."""

    def after(self, *, changed: bool) -> bool:
        """Return whether the next call may be captured, if it needs to be. `changed`: whether a change was found."""
        if self.rest:
            self.rest = 0
            return False
        if changed:
            self._row = self._row + 1 if self._calm < self.SOON else 0
        self._calm = 0 if changed else self._calm + 1
        self._take_rest(changed and self._row >= self.QUICK_ONES)
        return self._row <= 1 or self._calm >= min(2 ** (self._row - 1), self.SOON)

    def exhaust(self) -> None:
        """Leave the next calls alone, as a capture has found what each call changes."""
        self._row, self._calm = max(self._row + 1, self.QUICK_ONES), 0
        self._take_rest(True)

    def _take_rest(self, rests: bool) -> None:
        self.rest = self.LEAST_REST * 2 ** min(self._row - self.QUICK_ONES, self._MOST_DOUBLINGS) if rests else 0


class Watch:
    """Compares a model and its optimizer with their state at the last `renew`: tensors, addresses, built-in settings.

    `functions` are other callables that a graph has built in: a loss, or a function in place of a model. Values that
    they and the model's code read besides their arguments (globals, closures, attributes) are watched, too. So are
    those that the methods of arguments' classes read, once these are included (`include`).

    `observe` is called before every call. Once the native library is loaded, an observation that finds no change costs
    a few memory loads per tensor.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None, *, functions: Sequence[Any] = ()) -> None:
        self.model = model
        self.optimizer = optimizer
        self._functions = tuple(functions)
        self._classes: dict[type, None] = {}
        self._patience = Patience()
        self.steady = True
        """Whether it is long enough ago that something has changed, so that a graph is worth its capture."""
        self._unsteady: str | None = None
        self._constants: tuple[Any, ...] | None = None
        self._known: deque[tuple[Any, ...]] = deque(maxlen=MOST_SETTINGS)
        """Constants of the modules as they were: alternating between these is no change."""
        self._reads = self._new_reads(())
        self._note()

    def renew(self) -> None:
        """Compare with the current state from here on."""
        if self._reads.changed() is not None or not self._same_readers():
            self._reads = self._new_reads(self._classes)
        self._note()

    def others(self, classes: Iterable[type]) -> list[type]:
        """Those of these classes of arguments that are not included."""
        return [kind for kind in classes if kind not in self._classes]

    def make_room(self, classes: Sequence[type]) -> bool:
        """Watch no class of arguments any more where these have no room beside those that are; return whether so.

        A program may make its classes anew again and again. No graph may then be left that relies on one.
        """
        full = bool(self._classes) and len(self._classes) + len(classes) > MOST_CLASSES
        if full:
            self._classes = {}
            self._reads = self._new_reads(())
            self._note()
        return full

    def include(self, classes: Iterable[type]) -> str | None:
        """Watch also what the methods of these classes read; return why that cannot be, in words, else None.

        That takes a walk for what code can read, of milliseconds. Nothing is done where anything else has changed: the
        next `observe` has to say so.
        """
        found = {**self._classes, **dict.fromkeys(classes)}
        reads = self._new_reads(found)
        if reads.state.unwatchable is not None:
            return f"it reads {reads.state.unwatchable}"
        if self._reads.changed() is None and self._holds():
            self._classes, self._reads = found, reads
            self._note()
        return None

    def _new_reads(self, classes: Iterable[type]) -> ReadsWatch:
        return ReadsWatch(self.model, (*self._functions, *classes))

    def _note(self) -> None:
        reached = (part for module in self._reads.state.modules for part in module.modules())
        self._own = len(list(self.model.modules()))
        self._modules = list(dict.fromkeys([*self.model.modules(), *reached]))
        tables = {id(table.items): table.names for table in self._reads.state.tables}
        self._readable = [tables.get(id(vars(one))) or () for one in self._modules[: self._own]]
        held = list(self._held_by_modules())
        self._bare = _tensors_in(value for _, _, value in held if _is_bare(value))
        self._trainable = _tensors_in([*(value for _, _, value in held), *self._reads.state.tensors])
        held += self._held_by_optimizer()
        self._holders = [holder for holder, _, _ in held]
        self._names = [name for _, name, _ in held]
        self._values = [value for _, _, value in held]
        self._tensors = list(filter(_is_strided, self.tensors))
        self._parameters = list(self.model.parameters())
        self._places = _places_of(self._tensors)
        self._tables = [t for m in self._modules for t in (m._parameters, m._buffers, m._modules)]
        self._keys = list(map(tuple, self._tables))  # in their order, by which nn.Sequential calls its layers
        self._kinds = list(map(type, self._modules))
        self.held = self._held()
        self._untouched: Any = None
        self._kinds_assigned: Any = None
        self._groups_untouched: Any = None
        self._last: Observation | None = None

    @property
    def versions(self) -> int:
        """The number of all writes to the tensors so far, without those by way of `.data`."""
        return sum(0 if tensor.is_inference() else tensor._version for tensor in self._tensors)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that the model and the functions read, each once."""
        return _tensors_in([*self._values, *self._reads.state.tensors])

    def _held(self) -> frozenset[int]:
        """Where the storages of the tensors begin, and the negative ids of the tensors themselves."""
        begins = (tensor.untyped_storage().data_ptr() for tensor in self._tensors)
        return frozenset([*begins, *(-id(tensor) for tensor in self._tensors)])

    def observe(self) -> Observation:
        """Return the current state. Call it once before each call that is looked at: it counts how often it changes."""
        read = self._reads.changed()
        untouched = self._last is not None and self._untouched is not None and self._untouched.holds()
        if read is None and untouched and self._same_kinds():
            assert self._last is not None
            if not self._groups_untouched.holds():  # as before each step of a learning-rate schedule
                self._groups_untouched = self._touches_of_groups()
                self._last = replace(self._last, settings=(*self._last.settings[:2], *self._groups()))
            return self._judged(self._last, self._new_constant(self._last.settings))
        self._last = self._present(changed=read is not None or not self._holds())
        if self._last.changed:
            return self._judged(self._last, read or self._moved() or "a tensor, a layer or the optimizer's state")
        return self._judged(self._last, self._new_constant(self._last.settings))

    def renewed(self) -> Observation:
        """After a change: compare with the current state from here on, and return it. It counts as no other change."""
        self.renew()
        self._last = self._present(changed=False)
        self._new_constant(self._last.settings)
        return self._verdict(self._last)

    def _present(self, *, changed: bool) -> Observation:
        self._note_touches()  # first: what another thread changes meanwhile then counts as touched
        hooked = owner_of_hooks(self._modules, self._parameters)
        return Observation(changed, hooked, self._settings(), apart=why_update_apart(self.optimizer))

    def _judged(self, found: Observation, what: str | None) -> Observation:
        """The observation with what follows from it, as `what` has changed now; None where nothing has."""
        self.steady = self._patience.after(changed=what is not None)
        if self._patience.rest:
            self._unsteady = self._unsteady or f"{what} changes from call to call"
        elif self.steady:
            self._unsteady = None
        return self._verdict(found)

    def set_by_calls(self, why: str) -> None:
        """Take note that calls are not captured for this reason, as each sets a value."""
        self._patience.exhaust()
        self._unsteady = why

    @property
    def rest(self) -> int:
        """Number of calls that need no look from now on, as something changes too often or cannot be watched."""
        return self._patience.rest if self.watchable else max(self._patience.rest, Patience.LEAST_REST)

    @property
    def watchable(self) -> bool:
        """Whether all Python values that code reads can be watched for changes."""
        return self._reads.state.unwatchable is None

    def _verdict(self, found: Observation) -> Observation:
        """The observation with what follows from the changes so far."""
        unwatchable = self._reads.state.unwatchable
        why = self._unsteady if unwatchable is None else f"it reads {unwatchable}"
        return found if why is None else replace(found, unsteady=why)

    def _new_constant(self, settings: tuple[Any, ...]) -> str | None:
        """The name of a constant that has changed, where those of the modules were not so before; else None."""
        before, self._constants = self._constants, settings[0]
        if settings[0] == before or settings[0] in self._known:
            return None
        self._known.append(settings[0])
        if before is None:
            return None
        for module, now, other in zip(self._modules, settings[0][0], before[0], strict=False):
            found, known = dict(now), dict(other)
            name = next((name for name in {**found, **known} if found.get(name) != known.get(name)), None)
            if name is not None:
                return self._reads.state.name_of(module, name)
        return "the mode of a module"

    def _moved(self) -> str | None:
        """The name of a tensor or a layer that was exchanged; None for the optimizer's state, and for moved memory."""
        found = map(dict.get, self._holders, self._names)
        held = {id(table): m for m in self._modules for table in (vars(m), m._parameters, m._buffers, m._modules)}
        items = zip(found, self._values, map(id, self._holders), self._names, strict=True)
        moved = ((held[holder], name) for now, before, holder, name in items if now is not before and holder in held)
        return next(filter(None, (self._reads.state.name_of(module, name) for module, name in moved)), None)

    def _same_kinds(self) -> bool:
        """Whether all modules are still of the classes that they had: assigning `__class__` touches no dictionary."""
        quick = self._kinds_assigned
        return (quick is not None and quick.holds()) or all(map(is_, map(type, self._modules), self._kinds))

    def _touches_of_groups(self) -> Any:
        library = loaded_library()
        assert library is not None
        groups = self.optimizer.param_groups if self.optimizer is not None else []
        return library.Untouched(groups, [groups, *(group["params"] for group in groups)], [])

    def _note_touches(self) -> None:
        library = loaded_library()
        if library is None or not library.tagged:
            return
        self._groups_untouched = self._touches_of_groups()
        kinds = library.Unassigned([(module, "__class__") for module in self._modules])
        self._kinds_assigned = None if kinds.rest else kinds
        tables = [
            *map(vars, self._modules),
            *self._tables,
            *map(vars, self._bare),
            *hook_tables(self._modules, self.optimizer),
        ]
        if self.optimizer is not None:
            states = (state for state in self.optimizer.state.values() if isinstance(state, dict))
            tables += [vars(self.optimizer), self.optimizer.state, *states]
            tables += map(attributes_of, type(self.optimizer).__mro__[:-1])
        tensors = [*self._tensors, *filter(_is_strided, self._parameters)]
        self._untouched = library.Untouched(tables, [], _tensors_in(tensors))

    def _same_readers(self) -> bool:
        """Whether no object was exchanged that has code or attributes of its own, as layers and parameters have.

        Other tensors may be exchanged in every call, and a walk for what code can read takes milliseconds.
        """
        found = map(dict.get, self._holders, self._names)
        same = (now is old or (_is_bare(now) and _is_bare(old)) for now, old in zip(found, self._values, strict=True))
        return all(same) and self._same_names()

    def _same_names(self) -> bool:
        """Whether layers have their classes and the same names, and tensors that had no Python attribute have none."""
        return (
            list(map(tuple, self._tables)) == self._keys
            and all(map(is_, map(type, self._modules), self._kinds))
            and not any(map(vars, self._bare))
        )

    def _holds(self) -> bool:
        found = map(dict.get, self._holders, self._names)
        same = all(map(is_, found, self._values)) and self._same_names()
        return same and _places_of(self._tensors) == self._places

    def _settings(self) -> tuple[Any, ...]:
        own, others = self._modules[: self._own], self._modules[self._own :]
        constants = (
            tuple([tuple(constants_of(vars(m), n)) for m, n in zip(own, self._readable)]),
            tuple([m.training for m in others]),
        )
        if self.optimizer is None and "requires_grad" not in self._reads.state.names:
            return (constants,)
        trained = tuple(map(attrgetter("requires_grad"), self._trainable))
        return constants, trained, *(() if self.optimizer is None else self._groups())

    def _groups(self) -> tuple[Any, ...]:
        """The optimizer's settings that graphs have built in, and the ids of each group's parameters."""
        assert self.optimizer is not None
        held = tuple([tuple(map(id, group["params"])) for group in self.optimizer.param_groups])
        return built_in(self.optimizer), held

    def _held_by_modules(self) -> Iterator[tuple[dict[Any, Any], Any, object]]:
        for module in self._modules:
            own = vars(module)
            yield own, "forward", own.get("forward")
            yield from ((own, name, value) for name, value in own.items() if isinstance(value, Tensor))
            for place in ("_parameters", "_buffers", "_modules"):
                held = getattr(module, place)
                yield own, place, own.get(place)
                yield from ((held, name, value) for name, value in held.items())

    def _held_by_optimizer(self) -> Iterator[tuple[dict[Any, Any], Any, object]]:
        if self.optimizer is not None:
            yield vars(self.optimizer), "state", self.optimizer.state
            for parameter, state in self.optimizer.state.items():
                yield self.optimizer.state, parameter, state
                if isinstance(state, dict):  # a user's own optimizer may keep anything there
                    yield from ((state, name, value) for name, value in state.items() if isinstance(value, Tensor))


def _tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among `values`, each once."""
    return list({id(value): value for value in values if isinstance(value, Tensor)}.values())


def _is_bare(value: Any) -> bool:
    """Whether it is None, or a tensor that is no parameter and has no Python attributes."""
    return value is None or (isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not vars(value))


def _places_of(tensors: list[Tensor]) -> list[tuple[int, torch.Size, tuple[int, ...], torch.dtype]]:
    """Where tensors lie, and how they read the memory there, where numbers of another type may come to lie."""
    return [(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and is_plain(tensor)
