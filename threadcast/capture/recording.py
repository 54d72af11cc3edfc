"""Recording of the operators that a callable calls below autograd, on fake tensors: shapes without arithmetic.

PyTorch's own tracer, `make_fx`, also builds a graph of Python objects. The first step by a stored plan would wait for
that too.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from threadcast.capture.numbers import Number, Numbers
from threadcast.capture.program import Phase
from threadcast.capture.tensor_reads import refused_reads
from threadcast.capture.values import Ref
from threadcast.core.errors import CaptureError, InvalidInput
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

TRANSPARENT = {aten.detach.default, aten.detach_.default, aten.alias.default, aten.lift.default}
"""Operators that return their argument; below autograd they have no effect and are left out."""

_UNKEPT = {aten.set_.source_Storage, aten.set_.source_Tensor, aten.set_.source_Storage_storage_offset}
"""Operators that give a tensor other memory."""

PLAIN = (
    bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.Size,
)  # fmt: skip
"""Types that arguments and results may have besides tensors: a graph has such values built in, they must not change."""

Result = TensorSpec | None | list[TensorSpec | None]
"""The results of a call: the spec of a tensor, None for anything else, or a list of these for several results."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One call of an operator. `args` and `kwargs` hold a `Ref` for each tensor.

    `number` is the slot number in refs to its results.
    """

    number: int
    name: str
    target: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    phase: Phase
    result: Result


@dataclass(slots=True, eq=False)
class Recording:
    """Operator calls in the order in which they were made; their refs are to arguments, constants and earlier results.

    The first slots are the arguments', by position. `constants` are the tensors of the callable's closure, by slot.
    `specs` are the specs of all tensors. `outputs` is the flat list of refs and plain values that the callable
    returned, `structure` its nested form.
    """

    specs: dict[Ref, TensorSpec] = field(default_factory=dict)
    calls: list[Recorded] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    structure: pytree.TreeSpec = field(default_factory=lambda: pytree.tree_structure(()))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records one callable. `phase` is the part of a step that is running; the recorded callable may set it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self.recording = Recording()
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            self._fakes = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
        self._slots = 0
        self._of: dict[int, Ref] = {}  # refs by the tensor's id
        self._alive: list[Tensor] = []  # so that no id is used twice
        self._storages: dict[int, int] = {}  # by id of the tensor
        self._closed_over: dict[int, Tensor] = {}  # fakes by the id of what they stand for
        self._doubles: set[Ref] = set()  # refs that several tensors have
        self._names: Counter[str] = Counter()
        self._decomposes: dict[OpOverload, bool] = {}
        self._numbers = Numbers(self._add_number)

    def number(self, tensor: Tensor) -> Number:
        """A float that stands for the one element that `tensor` will hold when the graph runs.

        The recorded callable may call this while it is recorded.
        """
        return self._numbers.standing_for(self._ref(tensor))

    def record(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Recording:
        """Call `function(*arguments)` and return the operator calls made; each leaf of the arguments has a slot.

        CaptureError says why a callable cannot be recorded, also where the callable itself raised something else.
        """
        try:
            with warnings.catch_warnings(), ExitStack() as end:
                warnings.simplefilter("ignore")
                # Autocast keeps no casts of weights meanwhile: they would outlive the fake tensors.
                end.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
                torch.set_autocast_cache_enabled(False)
                leaves, structure = pytree.tree_flatten(tuple(arguments))
                given = [self._given(leaf) for leaf in leaves]
                random_state = end.enter_context(_RandomState())
                end.enter_context(refused_reads())
                with self._fakes, self:
                    outputs = function(*pytree.tree_unflatten(given, structure))
                random_state.check(self.recording)
        except CaptureError:
            raise
        except Exception as error:
            # The exception of the user's code or of the tracer is the reason, and is attached as the cause.
            reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
            raise CaptureError(
                f"cannot capture: {type(error).__name__}: {reason}. Control flow and shapes must not depend on "
                "tensor values (.item(), if tensor, boolean masks)"
            ) from error
        found, self.recording.structure = pytree.tree_flatten(outputs)
        strange = next((leaf for leaf in found if not isinstance(leaf, (Tensor, *PLAIN))), None)
        if strange is not None:
            raise CaptureError(f"cannot capture: a {type(strange).__name__} is returned, in which tensors may be")
        self.recording.outputs = [self._ref(self._faked(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in found]
        for leaf in given:
            if isinstance(leaf, Tensor):
                self._ref(leaf)  # raises where its memory was exchanged
        return self.recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            raise CaptureError(f"cannot capture a call of {func}")
        if func.namespace == "prim":  # queries properties that fake tensors have
            return func(*args, **kwargs)
        reshapes = torch.Tag.inplace_view in func.tags and func not in TRANSPARENT
        if func in _UNKEPT or (reshapes and not self._is_new(args[0])):
            raise CaptureError(f"cannot capture {func}: it changes what a tensor is, not what it holds")
        if self._is_made_of_others(func, (args, kwargs)):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if func is not aten.lift_fresh.default:
            args, kwargs = tuple(self._faked(args)), self._faked(kwargs)
        if func is aten._local_scalar_dense.default and self.phase == "update":  # an optimizer's loop reads a number
            held = self._add_number(aten._to_copy.default, (self._ref(args[0]),), {"dtype": torch.float64})
            return float(self._numbers.standing_for(held))
        base = func._schema.name.split("::")[-1]
        result = None if base.startswith("_fused_") and not func._schema.returns else func(*args, **kwargs)
        for tensor in _written(func, args, kwargs):
            tensor.constant = None  # its value is not known from here on, which FakeTensorMode misses in lists
        if func in TRANSPARENT:
            self._define(result, self._ref(args[0]))
            self._doubles.add(self._ref(args[0]))
            return result
        if func is aten.lift_fresh.default:  # a tensor made of Python numbers, which the callable may write to
            func = aten.lift_fresh_copy.default
        taken, named = tuple(self._with_refs(args)), self._with_refs(kwargs)  # before its results have their refs
        taken, named = self._numbers.put_in(taken), self._numbers.put_in(named)
        slot = self._new_slot()
        specs: Result
        if isinstance(result, list | tuple):
            specs = [self._define(one, Ref(slot, item), base) for item, one in enumerate(result)]
        else:
            specs = self._define(result, Ref(slot), base)
        self.recording.calls.append(Recorded(slot, self._name(base), func, taken, named, self.phase, specs))
        return result

    def _is_new(self, tensor: Tensor) -> bool:
        """Whether the last recorded call created the tensor, in new memory that nothing else refers to yet."""
        ref, last = self._of.get(id(tensor)), self.recording.calls[-1] if self.recording.calls else None
        if ref is None or last is None or ref.slot != last.number or ref in self._doubles:
            return False
        return all(result.alias_info is None for result in last.target._schema.returns)

    def _add_number(self, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Ref:
        """Record a call whose result is a tensor of one float64; no fake tensor of it is made."""
        if target is aten.full.default:
            kwargs = {"dtype": torch.float64}
        ref = Ref(self._new_slot())
        spec = self.recording.specs[ref] = TensorSpec((), "float64", ())
        base = target._schema.name.split("::")[-1]
        self.recording.calls.append(Recorded(ref.slot, self._name(base), target, args, kwargs or {}, self.phase, spec))
        return ref

    def _new_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _given(self, leaf: Any) -> Any:
        value = self._fake(leaf) if isinstance(leaf, Tensor) else leaf
        self._define(value, Ref(self._new_slot()))
        return value

    def _define(self, value: Any, ref: Ref, name: str = "a tensor") -> TensorSpec | None:
        """Remember that `ref` refers to `value`, and return the spec of `value`.

        None for a value that is not a tensor.
        """
        if not isinstance(value, Tensor):
            return None
        if ref not in self.recording.specs:
            self.recording.specs[ref] = _spec(value, name)
        self._of[id(value)] = ref
        self._alive.append(value)
        self._storages[id(value)] = value.untyped_storage()._cdata
        return self.recording.specs[ref]

    def _faked(self, value: Any) -> Any:
        """`value` with a fake for each tensor of the callable's closure, so that no call writes to the real one."""
        if isinstance(value, Tensor) and not isinstance(value, FakeTensor):
            if id(value) not in self._closed_over:
                self._closed_over[id(value)] = self._fake(value)
                self._define(self._closed_over[id(value)], self._constant(value))
            return self._closed_over[id(value)]
        if isinstance(value, list | tuple):
            return [self._faked(part) for part in value]
        if isinstance(value, dict):
            return {name: self._faked(part) for name, part in value.items()}
        return value

    def _fake(self, tensor: Tensor) -> Tensor:
        """A new fake tensor, also where the same tensor or its memory has been faked before."""
        fake: Tensor = self._fakes.from_tensor(tensor)
        if id(fake) not in self._of:
            return fake
        with self._fakes:
            return fake.detach()

    def _constant(self, tensor: Tensor) -> Ref:
        ref = Ref(self._new_slot())
        self.recording.constants[ref.slot] = tensor
        return ref

    def _ref(self, tensor: Tensor) -> Ref:
        known = self._of.get(id(tensor))
        if known is not None:
            if self._storages[id(tensor)] != tensor.untyped_storage()._cdata:
                raise CaptureError("cannot capture: the memory of a tensor is exchanged (.data = ...)")
            return known
        if isinstance(tensor, FakeTensor):
            raise CaptureError("cannot capture: a tensor comes from a call that was not seen")
        self._define(tensor, ref := self._constant(tensor))
        return ref

    def _with_refs(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._ref(value)
        if isinstance(value, list | tuple):
            return [self._with_refs(part) for part in value]
        if isinstance(value, dict):
            return {name: self._with_refs(part) for name, part in value.items()}
        return value

    def _is_made_of_others(self, func: OpOverload, arguments: Any) -> bool:
        """Whether PyTorch defines the operator by calls of other operators, which autograd would have made."""
        known = self._decomposes.get(func)
        if known is None:
            known = autograd_would_have_decomposed(func, pytree.tree_leaves(arguments))
            self._decomposes[func] = known
        return known

    def _name(self, base: str) -> str:
        self._names[base] += 1
        count = self._names[base] - 1
        return f"{base}_{count}" if count else base


def _written(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[FakeTensor]:
    """The tensors that a call declares to write."""
    if not func._schema.is_mutable:
        return []
    values = [*args, *(kwargs.get(argument.name) for argument in func._schema.arguments[len(args) :])]
    written = [
        value
        for argument, value in zip(func._schema.arguments, values, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, FakeTensor)]


class _RandomState:
    """Detects that the random state is set, or that random numbers are drawn by anything but operators.

    A run of the graph could not repeat either.
    """

    def __enter__(self) -> Self:
        self._set = False
        self._before = self._others()
        self._patches = [
            patch.object(module, name, self._noticed(getattr(module, name)))
            for module in (torch, torch.random)
            for name in ("set_rng_state", "manual_seed")
        ]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()

    def check(self, recording: Recording) -> None:
        """CaptureError where a run of the graph would draw other random numbers than the callable."""
        if self._set and any(torch.Tag.nondeterministic_seeded in call.target.tags for call in recording.calls):
            raise CaptureError("cannot capture: random numbers are drawn, and the generator's state is set")
        if self._others() != self._before:
            raise CaptureError("cannot capture: random numbers of Python or NumPy are drawn")

    def _noticed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self._set = True
            return function(*arguments, **named)

        return called

    @staticmethod
    def _others() -> tuple[Any, ...]:
        return random.getstate(), repr(np.random.get_state(legacy=False))


def _spec(value: Tensor, name: str) -> TensorSpec:
    """Shape, type and strides of a tensor as it is now."""
    if value.layout is not torch.strided:
        raise CaptureError(f"cannot capture: {name} is sparse")
    sides = (*value.shape, *value.stride())
    if any(isinstance(side, torch.SymInt) for side in sides):
        raise CaptureError(f"cannot capture: the shape of {name} depends on tensor values (masks, nonzero, unique)")
    try:
        return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride()))
    except InvalidInput as error:
        raise CaptureError(f"cannot capture {name}: {error}") from error
