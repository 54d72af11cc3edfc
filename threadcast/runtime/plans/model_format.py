"""The memory format of a network: as its parameters are given, or channels last, often faster for convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import lies_in, writes
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.runtime.plans.shared_memory import any_shared
from threadcast.runtime.plans.variant import MemoryFormat


def formats_of(model: nn.Module | None, example: Any) -> tuple[MemoryFormat, ...]:
    """Return the memory formats worth trying: both for images and weights of four dimensions, else the given one.

    The likeliest comes first. Layers are not asked for: models that were traced call `conv2d` themselves.
    """
    convolves = model is not None and any(parameter.dim() == 4 for parameter in model.parameters())
    images = any(isinstance(leaf, Tensor) and leaf.dim() == 4 for leaf in pytree.tree_leaves(example))
    return (MemoryFormat.CHANNELS_LAST, MemoryFormat.AS_GIVEN) if convolves and images else (MemoryFormat.AS_GIVEN,)


def formats_with_equal_results(captured: Captured, formats: Sequence[MemoryFormat]) -> tuple[MemoryFormat, ...]:
    """Return those of `formats` in which a call with this graph gives what it gives in the given format.

    Random numbers are drawn in the order of a tensor's numbers in memory, and another format has copies of images and
    weights in other memory: a graph that draws numbers, writes to an image among its arguments, or returns one or a
    weight has only the given format.
    """
    return (MemoryFormat.AS_GIVEN,) if captured.random or _shares_images(captured) else tuple(formats)


def with_images_channels_last(values: Any) -> Any:
    """Return the nested `values` with copies of their images in channels-last order; all others are the same objects.

    Images are floating-point tensors of four dimensions. Those that are in this order already are not copied; one that
    comes twice has one copy.
    """
    return pytree.tree_map_only(Tensor, cache(_channels_last), values)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if is_image(tensor) else tensor


def is_image(tensor: Tensor) -> bool:
    """Return whether an argument or a weight has other strides in channels last."""
    return tensor.dim() == 4 and tensor.is_floating_point()


def _shares_images(captured: Captured) -> bool:
    """Whether a graph writes to an image among its arguments, or to the copy of one that it begins with, or returns
    what lies in their memory or in that of a weight."""
    nodes, inputs, outputs = captured.program.nodes, captured.program.inputs, captured.program.outputs
    slots = (slot for slot, one in enumerate(inputs) if one.role == "input")
    images = {slot for slot, tensor in zip(slots, captured.arguments, strict=True) if is_image(tensor)}
    weights = {slot for slot, one in enumerate(inputs) if one.role == "parameter" and is_image(captured.held[slot])}
    copies = {captured.program.slot_of(i) for i, node in enumerate(nodes) if _copies(node, images)}

    def any_in(refs: Iterable[Ref], slots: set[int]) -> bool:
        memory = {slot if slot >= len(inputs) or inputs[slot].shares is None else inputs[slot].shares for slot in slots}
        return any(not memory.isdisjoint(lies_in(nodes, inputs, ref)) for ref in refs)

    written = (ref for node in nodes for ref in writes(node))
    return any_in(written, images | copies) or any_in(find_refs(outputs), images | copies | weights)


def _copies(node: Node, images: set[int]) -> bool:
    """Whether a node makes the copy in channels last of one of the inputs `images`."""
    if node.target is not torch.ops.aten.clone.default or not {ref.slot for ref in node.refs()} & images:
        return False
    return node.kwargs.get("memory_format") is torch.channels_last


GIVEN_ONLY = (MemoryFormat.AS_GIVEN,)
"""The formats of calls for which the model's tensors stay as they are."""


class ModelFormat:
    """Sets the memory format of one model: of its parameters, of the optimizer's state, and of its calls' arguments.

    The tensors stay the same objects with the same values; only the order of their numbers in memory changes. That
    takes new memory, so tensors that share theirs have to stay as they are: ask `why_fixed` before a change. Parameters
    that are not the optimizer's stay too. The model must not run in another thread meanwhile. `changed` is called after
    each change. Without a model, the format applies to arguments alone. `wanted` are the formats to try; None: by the
    kinds of layers and arguments.
    """

    def __init__(
        self, model: nn.Module | None, optimizer: Optimizer | None = None,
        *, changed: Callable[[], None] = lambda: None, wanted: Sequence[MemoryFormat] | None = None,
    ) -> None:  # fmt: skip
        self._model, self._optimizer, self._changed, self._wanted = model, optimizer, changed, wanted
        self.reset()

    def reset(self) -> None:
        """Take the current order of the model's tensors for the given format; the tensors may have been exchanged."""
        self.current = MemoryFormat.AS_GIVEN
        """The format that was set last."""
        self._parameters = [] if self._model is None else list(self._model.parameters())
        self._placed: dict[nn.Parameter, _Placed] = {}
        """The parameters that were put in channels last."""

    def worth_trying(self, arguments: Any) -> tuple[MemoryFormat, ...]:
        """Return the formats that are worth trying for a call with these arguments, the likeliest first."""
        return tuple(self._wanted or formats_of(self._model, arguments))

    def keep_given(self) -> None:
        """From now on the only format is the present order of the model's tensors."""
        self._wanted = GIVEN_ONLY
        self.reset()

    def why_stays(self, runs_in: MemoryFormat | None, *, verified: bool) -> str | None:
        """Return why tensors that a call which `runs_in` this format may reorder must stay in the order that they have.

        None where they need not, and where the call reorders none; its format may not be known yet. `verified`: it may
        also run in the given format.
        """
        reorders = runs_in is not self.current or (verified and runs_in is not MemoryFormat.AS_GIVEN)
        return self.why_fixed() if reorders else None

    def why_fixed(self) -> str | None:
        """Return why the model's tensors must stay in the order that they have, in words; None where they need not."""
        if self._optimizer is None and any(parameter.grad is not None for parameter in self._parameters):
            return "a parameter has a gradient: another optimizer, which may rely on strides, trains the model"
        images = filter(is_image, self._parameters)
        if _are_bound([tensor for image in images for tensor in (image, *self._state_of(image))]):
            return "a weight shares its memory with other tensors or processes, or was made in inference mode"
        return None

    def set(self, memory_format: MemoryFormat) -> None:
        """Reorder the tensors of model and optimizer to this format, if the format that was set last is another.

        On the way back, parameters stay as they are that were exchanged or moved since, or share their memory by now.
        """
        if memory_format is self.current:
            return
        self.current = memory_format
        # Within a transformation of `torch.func` or a mode the new memory would be wrapped or fake, and outlive it.
        with (
            torch.inference_mode(False), torch.no_grad(), torch._C._DisableFuncTorch(),
            torch._C.DisableTorchFunction(), _disable_current_modes(),
        ):  # fmt: skip
            if memory_format is MemoryFormat.CHANNELS_LAST:
                self._to_channels_last()
            else:
                self._back()
        self._changed()

    @contextmanager
    def as_given(self) -> Iterator[None]:
        """Within the context, all tensors are in the given format; afterwards in the one that they had before."""
        before = self.current
        self.set(MemoryFormat.AS_GIVEN)
        try:
            yield
        finally:
            self.set(before)

    def reference(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` in the format as given; afterwards tensors have that in which the compared call ran."""

        def as_given(*arguments: Any) -> Any:
            with self.as_given():
                return run(*arguments)

        return as_given

    def arguments(self, values: Any) -> Any:
        """Return a call's arguments in the current format."""
        return with_images_channels_last(values) if self.current is MemoryFormat.CHANNELS_LAST else values

    def _to_channels_last(self) -> None:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        own = {id(parameter) for group in groups for parameter in group["params"]}
        for parameter in filter(is_image, self._parameters):
            if self._optimizer is not None and id(parameter) not in own:
                continue  # another optimizer may train it, now or later: its state, on whose order it may rely, stays
            given = parameter.stride()
            parameter.data = parameter.detach().contiguous(memory_format=torch.channels_last)
            self._placed[parameter] = _Placed(given, _place(parameter))
            self._order_state(parameter)

    def _back(self) -> None:
        for parameter, placed in self._placed.items():
            if _place(parameter) == placed.place and not _are_bound([parameter]):
                given = torch.empty_strided(parameter.shape, placed.given, dtype=parameter.dtype)
                parameter.data = given.copy_(parameter.detach())
            self._order_state(parameter)
        self._placed.clear()

    def _order_state(self, parameter: nn.Parameter) -> None:
        """Give the optimizer's state the order of its parameter, on which fused updates rely."""
        for value in self._state_of(parameter):
            like = torch.empty_like(parameter, dtype=value.dtype)
            if value.stride() != like.stride():
                value.data = like.copy_(value.detach())

    def _state_of(self, parameter: nn.Parameter) -> list[Tensor]:
        """The tensors of the parameter's shape in the optimizer's state."""
        state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
        values = state.values() if isinstance(state, dict) else ()
        return [one for one in values if isinstance(one, Tensor) and one.shape == parameter.shape]


class _Placed(NamedTuple):
    """How a parameter was put in channels last."""

    given: tuple[int, ...]
    """Its strides before."""
    place: tuple[Any, ...]
    """Where it lay afterwards."""


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _are_bound(tensors: Sequence[Tensor]) -> bool:
    """Whether no copies may take the place of tensors: one shares its memory, or autograd does not accept it."""
    return any(map(Tensor.is_inference, tensors)) or any_shared(tensors)
