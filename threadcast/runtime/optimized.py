"""A function or training step that measures in its caller's own calls what runs it fastest, and runs it that way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.capture import Captured
from threadcast.capture.module_values import ModuleChanged
from threadcast.capture.optimizers import FirstStepMissing
from threadcast.capture.recording import PLAIN
from threadcast.capture.unsupported import is_plain, unsupported
from threadcast.core import Core, Machine
from threadcast.core.errors import CaptureError
from threadcast.core.settings import Settings
from threadcast.runtime.fallback import FIRST_CALL, Fallback, FirstCall
from threadcast.runtime.kinds_of_calls import differences
from threadcast.runtime.model_cores import ModelCores
from threadcast.runtime.plans.model_format import ModelFormat, formats_of
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuning.contender import Contender
from threadcast.runtime.tuning.report import Report
from threadcast.runtime.tuning.tuning import Tuning
from threadcast.runtime.verification.shadow import Shadowed, shadow_step
from threadcast.runtime.watching.constants import exact
from threadcast.runtime.watching.model import Observation, Watch
from threadcast.threads.this_process import this_process

MAX_SIGNATURES = 8
"""Most kinds of arguments (shapes, types, modes) that have a plan at a time; calls of further kinds run in PyTorch as
before, until `CALLS_IN_A_ROW` of one kind have come."""
CALLS_IN_A_ROW = 100
"""Calls of one further kind in a row, after which it is planned in place of the kind that was used least recently. A
number that changes in every call, as one that is annealed, never gets there; once it stays the same it does."""


class Optimized:
    """A callable that runs a call in eager PyTorch, or by a faster equivalent with the same effect on the model.

    The first calls measure and compare (`Tuning`); each of them does all of the caller's step.

    `shadowed` holds the call in eager PyTorch; its `trace` takes the model's memory format before the call's arguments.
    `capture(arguments, model_format)` returns the graph of one call in the current memory format. `watched` are the
    model and the optimizer whose tensors the graphs hold. `functions` are other callables that the graphs have built
    in, such as a loss. `rivals(arguments, cores)` returns further contenders; the text `among` names them. `name`
    identifies the call in stored plans, for other processes. `most` is the largest number of cores to use (None: all
    that the process has).
    """

    def __init__(
        self,
        shadowed: Shadowed,
        capture: Callable[[tuple[Any, ...], ModelFormat], Captured],
        machine: Machine,
        *,
        name: str,
        watched: tuple[nn.Module | None, Optimizer | None] = (None, None),
        functions: Sequence[Callable[..., Any]] = (),
        rivals: Callable[[tuple[Any, ...], int], Iterable[Contender]] = lambda _arguments, _cores: (),
        among: str = "",
        most: int | None = None,
    ) -> None:
        self.machine = machine
        self._default = shadowed.eager
        self._capture, self._rivals = capture, rivals
        model, optimizer = watched
        self._unsupported = unsupported(model)
        if self._unsupported is not None:
            model = None
        self._model = model
        self._watch = None if self._unsupported else Watch(model or nn.Module(), optimizer, functions=functions)
        self._format = ModelFormat(model, optimizer, changed=self._renew_watch)
        self._shadowed = replace(shadowed, eager=self._reference, trace=partial(shadowed.trace, self._format))
        self._tunings: dict[Any, Tuning | Fallback] = {}
        """For the key of each kind of arguments, what runs its calls."""
        self._last: tuple[Any, Tuning | Fallback] | None = None
        """Key and value of the last call's entry: comparing with them is quicker than looking them up."""
        settings = Settings.read()
        self._fuse, self._verify_every = settings["engine.fuse"], settings["engine.verify_every"]
        self._used: dict[Any, int] = {}
        """The kinds of calls by when they were last begun to be used, as a number that increases."""
        self._further: tuple[Any, int] = (None, 0)
        """The kind of the last calls where there is no place for it, and how many calls of it came in a row."""
        self._calls = 0
        """Number of calls that a `Tuning` ran, counted only where `engine.verify_every` asks to verify some of them."""
        self._folder, self._among = settings["engine.plans"], f"{among}, fused: {self._fuse}"
        self._name = name
        self._lock = RLock()
        self._warned: set[str] = set()
        self._changing: set[Hashable] = set()
        """Kinds of arguments that could not be captured before their first call, and have been called since."""
        self._awaited: Hashable | None = None
        """The kind of arguments that is to be captured after PyTorch's default has run its first call."""
        self._steps = this_process().steps
        self.cores = ModelCores(
            machine, self._resized, this_process().cores, most=most
        )  # last: cores may change from here on

    def __call__(self, *arguments: Any) -> Any:
        with self._lock, self._steps.step():
            found = self.prepare(*arguments)
            if isinstance(found, FirstCall):
                if self._awaited is not None:
                    self._changing.add(self._awaited)
                    self._awaited = None
                return self._as_given(*arguments)
            if not isinstance(found, Tuning):
                return self._as_before(found.reason, arguments)
            return self._verified(found, arguments) if self._verify_every else found(*arguments)

    def prepare(self, *arguments: Any) -> Tuning | Fallback | FirstCall:
        """Return what runs a call with these arguments. The call is captured first if none of its kind was before."""
        if self._unsupported is not None:
            return Fallback(self._unsupported)
        leaves, structure = _flattened(arguments)
        observed = self._observed(self._watch) if self._watch is not None else None
        reason = self._fallback(leaves, observed)
        if reason is not None:
            return Fallback(reason)
        described = _described(leaves), structure
        settings = observed.settings if observed is not None else None
        held = self._watch.storages if self._watch else frozenset()
        key = described, _overlaps(leaves, held), settings, torch.get_default_dtype()
        if self._last is not None and self._last[0] == key:
            self._last = key, self._last[1]  # settings that are the same object compare at once
            self._further = None, 0
            if self.cores.whole:
                return self._last[1]
            return self._with_other_cores(self._last[1]) or FIRST_CALL
        if not self.cores.whole:
            found = self._with_other_cores(self._tunings.get(key))
            if found is not None:
                return found
        if key not in self._tunings:
            if len(self._tunings) >= MAX_SIGNATURES and not self._makes_place(key):
                return Fallback(f"more than {MAX_SIGNATURES} kinds of calls came: {differences(key, self._tunings)}")
            tuning = self._tuning(arguments, described)
            if isinstance(tuning, FirstCall):
                return tuning
            self._tunings[key] = tuning
            if isinstance(tuning, Tuning):
                self.cores.pass_to(tuning.resize)
        self._last = key, self._tunings[key]
        self._used[key] = max(self._used.values(), default=0) + 1
        self._further = None, 0
        return self._tunings[key]

    def _makes_place(self, key: Any) -> bool:
        """Whether the kind `key` has come so often in a row that the one used least recently was dropped for it."""
        further, calls = self._further
        self._further = key, calls + 1 if further == key else 1
        if self._further[1] < CALLS_IN_A_ROW:
            return False
        oldest = min(self._tunings, key=self._used.__getitem__)
        dropped = self._tunings.pop(oldest)
        del self._used[oldest]
        if isinstance(dropped, Tuning):
            dropped.close()
        self._last = None
        return True

    @property
    def reports(self) -> list[Report]:
        """One report for each kind of arguments: what runs it and why. In order of first use."""
        if self._unsupported is not None:
            return [Report.as_default(self._unsupported)]
        return [Report.as_default(t.reason) if isinstance(t, Fallback) else t.report for t in self._tunings.values()]

    @property
    def fastest(self) -> list[Contender]:
        """The fastest contender of the last comparison, one for each kind of arguments that could be captured."""
        return [tuning.fastest for tuning in self._tunings.values() if isinstance(tuning, Tuning)]

    def close(self) -> None:
        """End all threads and restore the memory format that the parameters had. Later calls measure anew."""
        with self._lock:
            for tuning in self._tunings.values():
                if isinstance(tuning, Tuning):
                    tuning.close()
            self._tunings.clear()
            self._used.clear()
            self._last = None
            self._format.set(MemoryFormat.AS_GIVEN)

    def _with_other_cores(self, found: Tuning | Fallback | None) -> Tuning | Fallback | None:
        """What runs a call while the cores are not those of `machine`; None where all must be measured anew."""
        if isinstance(found, Tuning) and found.follows and not self.cores.has_more:
            return found
        if isinstance(found, Fallback):
            return found
        others = [tuning for tuning in self._tunings.values() if isinstance(tuning, Tuning) and tuning.follows]
        if self.cores.unchanged and (self.cores.has_more or not others):
            self.close()
            self.machine = self.cores.adopt()
            return None
        if isinstance(found, Tuning) and found.follows:
            return found
        return Fallback("it has other cores than it was measured on, and they may go as soon as they came")

    def _resized(self, cores: Sequence[Core]) -> None:
        for tuning in list(self._tunings.values()):
            if isinstance(tuning, Tuning):
                tuning.resize(cores)

    def _tuning(self, arguments: tuple[Any, ...], described: Hashable) -> Tuning | Fallback | FirstCall:
        try:
            return Tuning(
                self._default,
                lambda memory_format: self._captured(arguments, memory_format),
                self._format,
                formats_of(self._model, arguments),
                self.machine,
                call=(self._name, described),
                plans=PlanStore(self._folder, self.machine, among=self._among),
                backends=self._rivals(arguments, len(self.machine)),
                fuse=self._fuse,
                checked=self._shadowed,
            )
        except FirstStepMissing:
            return FIRST_CALL
        except ModuleChanged as error:
            if described in self._changing:
                return Fallback(str(error))
            self._awaited = described
            return FIRST_CALL
        except CaptureError as error:
            return Fallback(str(error))

    def _captured(self, arguments: tuple[Any, ...], memory_format: MemoryFormat) -> Captured:
        self._format.set(memory_format)
        captured = self._capture(arguments, self._format)
        self._renew_watch()  # capturing makes an optimizer's missing state
        return captured

    def _observed(self, watch: Watch) -> Observation:
        """The state of model and optimizer. Where tensors were replaced, drops all graphs, which hold the old ones."""
        observed = watch.observe()
        if observed.changed:
            self.close()
            self._format.reset()
            watch.renew()
            now = watch.observe()
            observed = replace(now, unsteady=observed.unsteady or now.unsteady)
        return observed

    def _fallback(self, leaves: list[Any], observed: Observation | None) -> str | None:
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on, and an engine's threads do not have it; turn it on inside of the model"
        if any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in leaves):
            return "an argument is a sparse tensor"
        other = next((leaf for leaf in leaves if isinstance(leaf, Tensor) and not is_plain(leaf)), None)
        if other is not None:
            return f"an argument is a {type(other).__name__}, not an ordinary tensor"
        if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            return "an argument requires a gradient, which a captured step does not compute"
        strange = next((leaf for leaf in leaves if not isinstance(leaf, (Tensor, *PLAIN))), None)
        if strange is not None:
            return f"an argument is a {type(strange).__name__}, neither a tensor nor a constant"
        if observed is not None and observed.unsteady is not None:
            return observed.unsteady
        if observed is None or observed.hooked is None:
            return None
        return f"{observed.hooked} has hooks, which a captured step does not call"

    def _as_before(self, reason: str, arguments: tuple[Any, ...]) -> Any:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"threadcast runs this as PyTorch does: {reason}", stacklevel=3)
        return self._as_given(*arguments)

    def _as_given(self, *arguments: Any) -> Any:
        """Run a call in eager PyTorch in the given memory format."""
        self._format.set(MemoryFormat.AS_GIVEN)
        return self._default(*arguments)

    def _reference(self, *arguments: Any) -> Any:
        """Run a call as `_as_given` does, and restore the memory format, in which the compared call ran."""
        with self._format.as_given():
            return self._default(*arguments)

    def _verified(self, tuning: Tuning, arguments: tuple[Any, ...]) -> Any:
        """Run a call, and some calls in eager PyTorch too; WrongResult where the results differ."""
        self._calls += 1
        if self._calls % self._verify_every:
            return tuning(*arguments)
        reason = self._shadowed.too_large(arguments, tuning.captured)
        if reason is None:
            return shadow_step(self._shadowed, tuning, arguments, tuning.captured, lambda: tuning.ran)
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"threadcast does not verify this call: {reason}", stacklevel=4)
        return tuning(*arguments)

    def _renew_watch(self) -> None:
        """Make the watch compare with the tensors as they are now."""
        if self._watch is not None:
            self._watch.renew()


def _flattened(arguments: tuple[Any, ...]) -> tuple[list[Any], object]:
    """The leaves of the arguments, and a key of their nesting. Quick where all arguments are tensors."""
    plain = arguments
    if len(arguments) == 2 and [type(part) for part in arguments] == [tuple, dict] and not arguments[1]:
        plain = arguments[0]  # of a call without keywords
    if all(isinstance(value, Tensor) for value in plain):
        return list(plain), (plain is arguments, len(plain))
    return pytree.tree_flatten(arguments)


def _described(leaves: list[Any]) -> tuple[Hashable, ...]:
    """A key of the leaves: shape, type, strides and device of each tensor; type and value of every other leaf."""
    return tuple(
        [
            (leaf.shape, leaf.dtype, leaf.stride(), leaf.device) if isinstance(leaf, Tensor) else exact(leaf)
            for leaf in leaves
        ]
    )


def _overlaps(leaves: list[Any], held: frozenset[int]) -> tuple[tuple[int, int | None], ...]:
    """For each tensor, a number that tensors with the same memory share, and the address if the model holds it.

    Empty tensors share no memory.
    """
    places: dict[int, int] = {}
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    storages = [tensor.untyped_storage().data_ptr() or -i for i, tensor in enumerate(tensors, 1)]
    return tuple([(places.setdefault(at, len(places)), at if at in held else None) for at in storages])
