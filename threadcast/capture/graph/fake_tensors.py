"""The fake tensors that stand for a callable's tensors while it is recorded, and the slots that they have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from threadcast.capture.graph.program import Recording
from threadcast.capture.graph.values import AsNumber, Ref
from threadcast.core.errors import CaptureError, InvalidInput
from threadcast.core.tensor import TensorSpec
from threadcast.threads.garbage import without_garbage_collection


def load_fake_tensors() -> None:
    """Import what fake tensors need of PyTorch, once a process: some 0.6 s that the first capture takes otherwise.

    Collecting garbage meanwhile would take as long again: what is imported stays.
    """
    with without_garbage_collection():
        FakeTensorMode(static_shapes=True)


@cache
def start_autograd() -> None:
    """Have autograd count this machine's devices now, once a process, as it does in the first backward pass.

    A fake mode adds a GPU that is not there where PyTorch is built for CUDA. Counted afterwards, it gets threads, and
    with those forked processes cannot run a backward pass.
    """
    with torch.inference_mode(False), torch.enable_grad():
        torch.ones((), device="cpu", requires_grad=True).backward()  # type: ignore[no-untyped-call]


class FakeTensors:
    """The fake tensors of one recording, with the `Ref` of each. Adds specs and constants to `recording`.

    Fake tensors are made in `mode`, which has to be active while the callable runs.
    """

    def __init__(self, recording: Recording) -> None:
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            self.mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
        if self.mode.avoid_device_init:
            start_autograd()
        self._recording = recording
        self._slots = 0
        self._refs: dict[int, Ref] = {}  # by the tensor's id
        self._alive: list[Tensor] = []  # so that no id is used twice
        self._storages: dict[int, int] = {}  # by the tensor's id
        self.given: dict[int, int] = {}
        """By slot the id of the fake of each argument and of each tensor in the callable's closure."""
        self._of_arguments: set[int] = set()  # storages
        self._closed_over: dict[int, Tensor] = {}  # fakes by the id of what they stand for
        self._gradients: list[tuple[Tensor, Tensor | None]] = []  # leaves, with the `.grad` that they had

    def new_slot(self) -> int:
        """The number of a slot that nothing has yet."""
        self._slots += 1
        return self._slots - 1

    def argument(self, leaf: Any, before: Tensor | None = None) -> Any:
        """What stands for an argument of the callable, in the next slot: a fake for a tensor, else the leaf itself.

        For a tensor that has a fake in an earlier slot it is that one (`before`).
        """
        value: Any = before
        if before is None:
            value = self._fake(leaf) if isinstance(leaf, Tensor) else leaf
        self.define(value, ref := Ref(self.new_slot()))
        if isinstance(value, Tensor):
            self._of_arguments.add(self._storages[id(value)])
            self.given[ref.slot] = id(value)
            self._note_gradient(value)
        return value

    def define(self, value: Any, ref: Ref, name: str = "a tensor") -> TensorSpec | None:
        """Remember that `ref` refers to `value`, and return the spec of `value`; None for what is not a tensor.

        CaptureError, which calls the tensor `name`, where it is sparse.
        """
        if not isinstance(value, Tensor):
            return None
        if ref not in self._recording.specs:
            self._recording.specs[ref] = _spec(value, name)
        self._refs[id(value)] = ref
        self._alive.append(value)
        self._storages[id(value)] = value.untyped_storage()._cdata
        return self._recording.specs[ref]

    def ref(self, tensor: Tensor) -> Ref:
        """The ref of a tensor; a real tensor without one becomes a constant.

        CaptureError where its memory was exchanged, and for a fake tensor of another recording.
        """
        known = self._refs.get(id(tensor))
        if known is not None:
            if self._storages[id(tensor)] != tensor.untyped_storage()._cdata:
                raise CaptureError("cannot capture: the memory of a tensor is exchanged (.data = ...)")
            return known
        if isinstance(tensor, FakeTensor):
            raise CaptureError("cannot capture: a tensor comes from a call that was not seen")
        self.define(tensor, ref := self._constant(tensor))
        self.given[ref.slot] = id(tensor)
        return ref

    def with_refs(self, value: Any) -> Any:
        """`value` with the ref of each tensor in its place, in nested lists, tuples and dictionaries."""
        return _mapped(self.ref, value)

    def faked(self, value: Any) -> Any:
        """`value` with a fake for each tensor of the callable's closure, so that no call writes to the real one."""
        return _mapped(self._stand_in, value)

    def is_of_argument(self, tensor: Tensor) -> bool:
        """Whether the tensor is in the memory of an argument."""
        return self._storages.get(id(tensor)) in self._of_arguments

    def is_own(self, tensor: Tensor) -> bool:
        """Whether a recorded call returned the tensor: it is no argument, and not of the callable's closure."""
        return id(tensor) in self._refs and id(tensor) not in self.given.values()

    def has_attributes(self, tensor: Tensor) -> bool:
        """Whether the callable set Python attributes of a tensor that a recorded call returned."""
        return self.is_own(tensor) and not vars(tensor).keys() <= vars(self._fake(torch.empty(0))).keys()

    def have_gained_gradients(self) -> bool:
        """Whether a gradient was put into the `.grad` of an argument or a constant; real tensors have the former again.

        Autograd knows a tensor of the callable's closure itself, not its fake.
        """
        noted, self._gradients = self._gradients, []  # a recorder may be kept alive, and gradients are large
        gained = [(tensor, before) for tensor, before in noted if tensor.is_leaf and tensor.grad is not before]
        for tensor, before in gained:
            tensor.grad = before
        return bool(gained)

    def forget_value(self, tensor: FakeTensor, *, views: bool) -> None:
        """Note that the numbers of a tensor, and with `views` of others in its memory, are not known from here on."""
        if views and tensor.constant is not None:
            self.mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
        tensor.constant = None

    def release(self) -> None:
        """Let go of the tensors that fakes stand for, once all is recorded.

        PyTorch's table of them holds weak references until its garbage is collected, and `torch.utils.swap_tensors`
        raises for tensors that have any.
        """
        with suppress(AttributeError):  # PyTorch's own names
            self.mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear()

    def _note_gradient(self, tensor: Tensor) -> None:
        if tensor.is_leaf:
            self._gradients.append((tensor, tensor.grad))

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._closed_over:
            self._closed_over[id(tensor)] = self._fake(tensor)
            self.define(self._closed_over[id(tensor)], ref := self._constant(tensor))
            self.given[ref.slot] = id(self._closed_over[id(tensor)])
            self._note_gradient(tensor)
        return self._closed_over[id(tensor)]

    def _fake(self, tensor: Tensor) -> Tensor:
        """A new fake tensor, also where the same tensor or its memory has been faked before."""
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        fake.item_memo = None  # PyTorch 2.15 gives it the tensor's number, which another call need not have
        if id(fake) not in self._refs:
            return fake
        with self.mode:
            return fake.detach()

    def _constant(self, tensor: Tensor) -> Ref:
        ref = Ref(self.new_slot())
        self._recording.constants[ref.slot] = tensor
        return ref


def _mapped(change: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with `change` applied to each tensor in nested lists (or tuples, which become lists) and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple) and not isinstance(value, AsNumber):
        return [_mapped(change, part) for part in value]
    if isinstance(value, dict):
        return {name: _mapped(change, part) for name, part in value.items()}
    return value


def _spec(value: Tensor, name: str) -> TensorSpec:
    """Shape, type and strides of a tensor as it is now."""
    if value.layout is not torch.strided:
        raise CaptureError(f"cannot capture: {name} is sparse")
    try:
        return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."), value.stride())
    except InvalidInput as error:
        raise CaptureError(f"cannot capture {name}: {error}") from error
