"""Recording of the operators that a callable calls below autograd, on fake tensors: shapes without arithmetic.

PyTorch's own tracer, `make_fx`, also builds a graph of Python objects. The first step by a stored plan would wait for
that too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

from threadcast.capture.graph.dependencies import DECLARING
from threadcast.capture.graph.fake_results import (
    OneHots,
    counted_result,
    ctc_result,
    grouped_product,
    told_at_once,
)
from threadcast.capture.graph.fake_tensors import FakeTensors
from threadcast.capture.graph.numbers import READS, NumberReads, ReadRecorder
from threadcast.capture.graph.program import PLAIN, TRANSPARENT, Call, Phase, Recording, Result
from threadcast.capture.graph.values import AsNumber, Ref
from threadcast.capture.guards.function_caches import CacheFilled, FunctionCaches
from threadcast.capture.guards.past_operators import arguments_left_alone, refused_reads
from threadcast.capture.guards.printing import Said, not_shown
from threadcast.capture.guards.random_state import random_state_watched
from threadcast.capture.guards.unsupported import check_operator, has_cached_weights
from threadcast.core.errors import CaptureError

aten = torch.ops.aten

_BY_VALUE = (DataDependentOutputException, DynamicOutputShapeException)
REFUSALS: tuple[type[Exception], ...] = (
    CaptureError, *_BY_VALUE, UnsupportedFakeTensorException, UnsupportedOperatorException,
)  # fmt: skip
"""What operators raise only while they are recorded: code that catches it takes another way than in eager PyTorch."""
_ADVICE = "Control flow and shapes must not depend on tensor values (.item(), if tensor, boolean masks)"

_CPU = torch.device("cpu")
_QUERIES: dict[OpOverload, Callable[..., Any]] = {
    aten.size.default: lambda tensor: list(tensor.size()), aten.sym_size.default: lambda tensor: list(tensor.size()),
    aten.size.int: lambda tensor, dim: tensor.size(dim), aten.sym_size.int: lambda tensor, dim: tensor.size(dim),
    aten.stride.default: lambda tensor: list(tensor.stride()), aten.sym_numel.default: Tensor.numel,
    aten.sym_stride.default: lambda tensor: list(tensor.stride()), aten.numel.default: Tensor.numel,
    aten.sym_stride.int: lambda tensor, dim: tensor.stride(dim), aten.dim.default: Tensor.dim,
    aten.stride.int: lambda tensor, dim: tensor.stride(dim), aten.sym_storage_offset.default: Tensor.storage_offset,
}  # fmt: skip
"""Operators that only tell the sizes of a tensor; graphs of `torch.compile` for several sizes call them."""

_EXCHANGE_MEMORY = {aten.set_.source_Storage, aten.set_.source_Tensor, aten.set_.source_Storage_storage_offset}
"""Operators that give a tensor other memory."""

_BY_ZEROS = ("ProdBackward0", "ProdBackward1", "CumprodBackward0")
"""Nodes of autograd that compute another formula where a number is 0, which they look for: fake tensors cannot tell."""

_VIEWS = {
    aten.t_.default: aten.t.default, aten.transpose_.default: aten.transpose.int,
    aten.unsqueeze_.default: aten.unsqueeze.default, aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim, aten.squeeze_.dims: aten.squeeze.dims,
    aten.as_strided_.default: aten.as_strided.default,
}  # fmt: skip
"""Operators that turn a tensor into a view of itself, each with the operator that returns this view."""

_CONTIGUOUS = {
    aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default,
    aten.log_sigmoid_forward.default, aten._log_softmax_backward_data.default,
}  # fmt: skip
"""Operators whose results are contiguous; with fake tensors some have the strides of an argument."""

_AT_OFFSET = {aten.as_strided.default, aten.as_strided_.default, aten.as_strided_copy.default}
"""Operators that take an offset from the start of a tensor's memory, not of the tensor."""


class _Sides(list[int]):
    """The sides of a `torch.Size` that is returned, of which pytree itself would make a tuple."""


pytree.register_pytree_node(_Sides, lambda sides: (list(sides), None), lambda sides, _: torch.Size(sides))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records one callable. `phase` is the part of a step that is running; the recorded callable may set it.

    With `fixed_offsets` arguments are at the example's storage offsets in all runs.
    """

    def __init__(self, *, fixed_offsets: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fixed_offsets = fixed_offsets
        self.phase: Phase = "forward"
        self.caches: FunctionCaches | None = None
        """The caches of functions that the callable may call; CacheFilled where one would keep a fake tensor."""
        self.recording = Recording()
        self._fakes = FakeTensors(self.recording)
        self._names: Counter[str] = Counter()
        self._decomposes: dict[OpOverload, bool] = {}
        self._reads: ReadRecorder | None = None
        self._one_hots = OneHots()
        self._refusal = ""
        """What the first of `REFUSALS` that was raised says; an exception would keep alive what raised it."""

    def number(self, tensor: Tensor) -> AsNumber:
        """What stands for the one element that `tensor` will hold when the graph runs, among arguments of `call`."""
        return AsNumber(self._fakes.ref(tensor))

    def call(self, func: OpOverload, *args: Any, **kwargs: Any) -> None:
        """Record a call that writes to fake tensors and returns nothing, without making it.

        The recorded callable may call this while it is recorded.
        """
        in_order, name = tuple(self._fakes.with_refs(args)), self._name(func._schema.name.split("::")[-1])
        number, by_name = self._fakes.new_slot(), self._fakes.with_refs(kwargs)
        self.recording.calls.append(Call(func, in_order, by_name, self.phase, name, None, number=number))

    @property
    def reads(self) -> NumberReads | None:
        """The numbers that were read out of inputs, which the recording has built in; None where there are none."""
        return None if self._reads is None else self._reads.found()

    def record(self, function: Callable[..., Any], arguments: Sequence[Any], *, own: int = 0) -> Recording:
        """Call `function(*arguments)` and return the operator calls made; each leaf of the arguments has a slot.

        The first `own` leaves are the graph's own, the others those of a call. One of the others that comes twice, or
        is one of the own, is one tensor for the callable, unless offsets are fixed. `reads` are the numbers that were
        read.

        CaptureError says why a callable cannot be recorded, also where the callable itself raised something else.
        """
        if has_cached_weights():
            raise CaptureError("cannot capture within torch.nn.utils.parametrize.cached(), which keeps tensors")
        self._fakes = FakeTensors(self.recording)
        try:
            with not_shown() as said, ExitStack() as end:
                # Autocast keeps no casts of weights meanwhile: they would outlive the fake tensors.
                end.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
                torch.set_autocast_cache_enabled(False)
                leaves, structure = pytree.tree_flatten(tuple(arguments))
                self._reads = ReadRecorder(self.recording, leaves, first=own, of_inputs=not self._fixed_offsets)
                given = self._stand_ins(leaves, len(leaves) if self._fixed_offsets else own)
                check_random_state = end.enter_context(random_state_watched())
                refused = end.enter_context(refused_reads())
                if not self._fixed_offsets:  # as those that `torch.compile` itself has captured have
                    end.enter_context(_nothing_compiled())
                rebuilt = pytree.tree_unflatten(given, structure)
                with arguments_left_alone(rebuilt, own=own), self._fakes.mode, self:
                    outputs = function(*rebuilt)
                if refusal := self._refusal or "".join(refused[:1]):
                    raise CaptureError(f"cannot capture: the callable catches what only recording raises: {refusal}")
                if said:
                    raise Said(said[0])
                check_random_state(call.target for call in self.recording.calls)
        except CaptureError:
            raise
        except Exception as error:
            # The exception of the user's code or of the tracer is the reason, and is attached as the cause.
            reason = _first_line(error)
            advice = f". {_ADVICE}" if isinstance(error, _BY_VALUE) else ""
            raise CaptureError(f"cannot capture: {type(error).__name__}: {reason}{advice}") from error
        finally:
            gained = self._fakes.have_gained_gradients()
        outputs = pytree.tree_map_only(torch.Size, _Sides, outputs, lambda value: isinstance(value, torch.Size))
        found, self.recording.structure = pytree.tree_flatten(outputs)
        strange = next((leaf for leaf in found if not isinstance(leaf, (Tensor, *PLAIN))), None)
        if strange is not None:
            raise CaptureError(f"cannot capture: a {type(strange).__name__} is returned, in which tensors may be")
        fakes = self._fakes
        if gained:
            raise CaptureError("cannot capture: a gradient is added to `.grad` (backward), which a graph would not do")
        if any(isinstance(leaf, Tensor) and fakes.has_attributes(leaf) for leaf in found):
            raise CaptureError("cannot capture: an attribute of a result is set, which a graph would not do")
        if any(
            isinstance(leaf, Tensor) and leaf.requires_grad != one.requires_grad for leaf, one in zip(leaves, given)
        ):
            raise CaptureError("cannot capture: an argument is told to require a gradient, which a graph would not do")
        returned = fakes.faked(found)
        self.recording.outputs = [fakes.ref(leaf) if isinstance(leaf, Tensor) else leaf for leaf in returned]
        self.recording.returned = [id(leaf) if isinstance(leaf, Tensor) else None for leaf in returned]
        self.recording.given = fakes.given
        tensors = ((i, leaf) for i, leaf in enumerate(returned) if isinstance(leaf, Tensor))
        self.recording.detached = {i for i, leaf in tensors if not leaf.requires_grad}
        for leaf in given:
            if isinstance(leaf, Tensor):
                self._fakes.ref(leaf)  # raises where its memory was exchanged
        fakes.release()
        return self.recording

    def _stand_ins(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """What stands for each leaf; it is one object where a leaf from `first` on is a tensor that came before."""
        given: list[Any] = []
        known: dict[int, int] = {}
        for i, leaf in enumerate(leaves):
            again = known.get(id(leaf)) if i >= first else None
            given.append(self._fakes.argument(leaf, None if again is None else given[again]))
            if isinstance(leaf, Tensor):
                known.setdefault(id(leaf), i)
        return given

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return self._recorded(func, args, kwargs or {})
        except REFUSALS as error:
            if not isinstance(error, CacheFilled):  # which the caches remember
                self._refusal = self._refusal or _first_line(error) or type(error).__name__
            raise

    def _recorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator, and return what it returns for fake tensors."""
        if not isinstance(func, OpOverload):
            raise CaptureError(f"cannot capture a call of {func}")
        check_operator(func)
        if func.namespace == "prim":  # queries properties that fake tensors have
            return func(*args, **kwargs)
        if func in _QUERIES:
            return _QUERIES[func](*args, **kwargs)
        if self.caches is not None:
            self.caches.check_running()
        reshapes = torch.Tag.inplace_view in func.tags and func not in TRANSPARENT
        becomes_view = func in _VIEWS and self._fakes.is_own(args[0])
        if func in _EXCHANGE_MEMORY or (reshapes and not becomes_view):
            raise CaptureError(f"cannot capture {func}: it changes what a tensor is, not what it holds")
        if self._is_at_offset_of_argument(func, args, kwargs):
            raise CaptureError(f"cannot capture {func} at a storage offset: an argument may be at another one")
        if self._is_made_of_others(func, (args, kwargs)):
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if func is not aten.lift_fresh.default:
            args, kwargs = tuple(self._fakes.faked(args)), self._fakes.faked(kwargs)
        if (device := kwargs.get("device")) is not None and device.type == "cpu":
            kwargs = {**kwargs, "device": _CPU}  # "cpu:0" is no other device, but fake tensors of it do not mix
        if func in READS:
            return self._read(func, args)
        base = func._schema.name.split("::")[-1]
        result = self._result(func, args, kwargs)
        for tensor in _written(func, args, kwargs):
            self._fakes.forget_value(tensor, views=not func._schema.returns)  # which FakeTensorMode misses in lists
        if func.namespace not in DECLARING and not _are_tensors(result):
            raise CaptureError(f"cannot capture {func}: it returns a number, which may be another in the next call")
        if func in TRANSPARENT:
            self._fakes.define(result, self._fakes.ref(args[0]))
            return result
        if func is aten.lift_fresh.default:  # a tensor made of Python numbers, which the callable may write to
            func = aten.lift_fresh_copy.default
        # Before the results get their refs: a result may be one of the arguments.
        func = _VIEWS[func] if becomes_view else func
        in_order, by_name = tuple(self._fakes.with_refs(args)), self._fakes.with_refs(kwargs)
        slot = self._fakes.new_slot()
        if (hot := self._one_hots.ended_by(func, in_order, by_name, slot)) is not None:
            assert isinstance(result, Tensor)
            func, base, result, in_order, by_name = aten.one_hot.default, "one_hot", _contiguous(result), hot, {}
        specs: Result
        if isinstance(result, list | tuple):
            specs = [self._fakes.define(one, Ref(slot, item), base) for item, one in enumerate(result)]
        else:
            specs = self._fakes.define(result, Ref(slot), base)
        phase = "forward" if self.phase == "backward" and _in_a_users_backward() else self.phase
        if phase == "backward" and (node := torch._C._current_autograd_node()) and node.name() in _BY_ZEROS:
            raise CaptureError(f"cannot capture {node.name()}: PyTorch computes it otherwise where a number is 0")
        self.recording.calls.append(Call(func, in_order, by_name, phase, self._name(base), specs, number=slot))
        return result

    def _result(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func` returns for fake tensors; PyTorch's exception where its size may be another in the next call."""
        if (losses := ctc_result(func, args)) is not None:
            return losses
        if (told := told_at_once(self._fakes.mode, func, args, kwargs)) is not None:
            return told
        try:
            result = (grouped_product if func is aten._grouped_mm.default else func)(*args, **kwargs)
            return pytree.tree_map_only(Tensor, _contiguous, result) if func in _CONTIGUOUS else result
        except DynamicOutputShapeException:
            found = counted_result(func, args, kwargs, self._count)
            if found is None:
                raise
            return found

    def _count(self, tensor: Tensor) -> int | None:
        """The number of elements that are not 0, which becomes one of `reads`; None where it may be another."""
        if self._reads is None:
            return None
        number: int | None = self._reads.number(aten.count_nonzero.default, (self._fakes.ref(tensor),))
        return number

    def _read(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """The number that `func` reads; PyTorch's exception where it may be another in the next call."""
        try:
            return func(*args)
        except DataDependentOutputException:
            number = None
            if self._reads is not None:
                number = self._reads.number(func, tuple(self._fakes.with_refs(args)))
            if number is None:
                raise
            return number

    def _is_at_offset_of_argument(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if func not in _AT_OFFSET or self._fixed_offsets or not self._fakes.is_of_argument(args[0]):
            return False
        return (args[3] if len(args) > 3 else kwargs.get("storage_offset")) is not None

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


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """Within the context, what is compiled by `torch.compile` runs as it is, as `torch.cond` does, which compiles.

    Dynamo leaves functions that it meets within a mode as they are for good, and `torch.cond` then raises in each call.
    """
    loaded = "torch._dynamo" in sys.modules
    try:
        with torch.compiler.set_stance("force_eager") if loaded else nullcontext():
            yield
    finally:
        if not loaded and "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else ""


def _in_a_users_backward() -> bool:
    """Whether the `backward` of a user's `autograd.Function` runs: its operators may raise as those of a forward pass,
    with which they are counted."""
    return isinstance(torch._C._current_autograd_node(), torch.autograd.function.BackwardCFunction)


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


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.new_empty(tensor.shape)


def _are_tensors(result: Any) -> bool:
    """Whether an operator has returned nothing but tensors."""
    return all(one is None or isinstance(one, Tensor) for one in pytree.tree_leaves(result))
