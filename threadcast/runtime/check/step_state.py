"""Copies of all that a step may change, so that the same step can be run twice from the same state."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.guards.module_values import ModuleState

MOST_OF_FREE_MEMORY = 0.5
"""Share of the free memory that copies may take."""


_ARGUMENT = "argument "
"""How the names of arguments begin."""
_GENERATOR = "the state of PyTorch's random generator"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of numbers of so many bytes, to compare floating-point numbers bit by bit."""


class StepState:
    """Copies of the current values of a model, its optimizer, a step's arguments and PyTorch's random generator.

    `restore` writes the values back into the same tensors. `written` are tensors that the step's graph writes to. With
    `reads_arguments` it writes to no argument, and nor does this object: they may be read-only, or saved by autograd.
    The copies take `needed_bytes` of memory: as much as the arguments, the buffers and `written`; for a training step
    also as much as all parameters and the optimizer's state.

    The generator is left alone unless the step `draws`: other threads would draw again what they have drawn since.
    """

    def __init__(
        self, model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, *, written: Iterable[Tensor] = (),
        draws: bool = True, reads_arguments: bool = False,
    ) -> None:  # fmt: skip
        self._tensors = dict(_named(model, optimizer, arguments, written))
        self._read = {name for name in self._tensors if reads_arguments and name.startswith(_ARGUMENT)}
        """Names of arguments that are never written to."""
        self.values: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        """The copies by name; `now` uses the same names."""
        learned = _learned(model, optimizer)
        self.may_stay = frozenset(name for name, tensor in self._tensors.items() if id(tensor) not in learned)
        """Names of values that many steps leave as they are: arguments and buffers, but nothing that is learned."""
        copied = {id(tensor) for tensor in self._tensors.values()}
        parameters = [] if model is None else [(n, p) for n, p in model.named_parameters() if id(p) not in copied]
        self._versions = [(name, one, one._version) for name, one in parameters if not one.is_inference()]
        self._attributes = ModuleState(model) if model is not None else None
        self._model, self._optimizer = model, optimizer
        self._own = dict(vars(optimizer)) if optimizer is not None else {}
        self._state = {} if optimizer is None else dict(optimizer.state)
        self._entries = [(entries, dict(entries)) for entries in self._state.values() if isinstance(entries, dict)]
        if optimizer is not None:
            plain = ((name, value) for name, value in _optimizer_state(optimizer) if not isinstance(value, Tensor))
            self.values.update((name, copy.deepcopy(value)) for name, value in plain)
        self._draws = draws
        self.values.update(self._generator())

    def now(self) -> dict[str, Any]:
        """Return copies of the same values as they are now, and of optimizer state and gradients added since."""
        found, known = dict(self._tensors), {id(tensor) for tensor in self._tensors.values()}
        if self._optimizer is not None:
            more = [*_optimizer_state(self._optimizer), *_gradients(self._model, self._optimizer)]
            found.update((name, value) for name, value in more if id(value) not in known)
        return {**{name: _copied(value) for name, value in found.items()}, **self._generator()}

    def written_besides(self) -> str | None:
        """Return the name of a parameter that was not copied and was written to since; None where there is none."""
        return next((name for name, parameter, version in self._versions if parameter._version != version), None)

    def restore(self) -> None:
        """Set everything back to the values that it had when this object was made.

        Tensors that have these values are not written to, so that their version counters stay.
        """
        for name, tensor in self._tensors.items():
            if name not in self._read:
                _set(tensor, self.values[name])
        if self._attributes is not None:
            self._attributes.restore()
        if self._optimizer is not None:
            vars(self._optimizer).clear()
            vars(self._optimizer).update(self._own)
            for held, before in ((self._optimizer.state, self._state), *self._entries):
                held.clear()
                held.update(before)
        if self._draws:
            torch.set_rng_state(self.values[_GENERATOR])

    def _generator(self) -> dict[str, Tensor]:
        return {_GENERATOR: torch.get_rng_state()} if self._draws else {}


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _set(tensor: Tensor, value: Tensor) -> None:
    """Write a value to a tensor that does not have it already, bit by bit: 0 and -0 are different values here."""
    if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):  # it was resized, or got other memory
        tensor.data = value.clone()
        return
    tensor = tensor.detach()
    if not torch.equal(_bits(tensor), _bits(value)):
        tensor.copy_(value)


def _bits(tensor: Tensor) -> Tensor:
    """The numbers as integers of the same bits, so that equal ones are equal, also where they are no numbers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().view(_INTEGERS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def needed_bytes(
    model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, written: Iterable[Tensor] = ()
) -> int:
    """Return the bytes of memory that a `StepState` takes."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _named(model, optimizer, arguments, written))


def too_large(needed: int, free: int | None) -> str | None:
    """Return why copies of `needed` bytes are too large for `free` bytes of memory; None where they are not."""
    if free is None or needed <= MOST_OF_FREE_MEMORY * free:
        return None
    return (
        f"copies of what a step changes and computes would take {needed / 2**30:.1f} GiB of "
        f"{free / 2**30:.1f} GiB that are free"
    )


def _named(
    model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, written: Iterable[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """All tensors that an operator could write to, each once, with a readable name."""
    known: set[int] = set()
    for name, value in _all_values(model, optimizer, arguments, {id(tensor): tensor for tensor in written}):
        if isinstance(value, Tensor) and id(value) not in known and _is_writable(value):
            known.add(id(value))
            yield name, value


def _is_writable(tensor: Tensor) -> bool:
    """Whether an operator could write to the tensor: not to expanded, sparse or inference tensors."""
    if tensor.layout is not torch.strided or (tensor.is_inference() and not torch.is_inference_mode_enabled()):
        return False
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return not tensor.numel() or not any(stride == 0 and size > 1 for size, stride in sides)


def _all_values(
    model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, written: dict[int, Tensor]
) -> Iterator[tuple[str, Any]]:
    if model is not None:
        learned = (pair for pair in model.named_parameters() if optimizer is not None or id(pair[1]) in written)
        yield from ((f"parameter {name}", one) for name, one in learned)
        yield from model.named_buffers()
        for at, part in model.named_modules():
            yield from ((f"{at}.{name}".lstrip("."), value) for name, value in vars(part).items())
    if optimizer is not None:
        yield from (*_optimizer_state(optimizer), *_gradients(model, optimizer))
    yield from ((f"{_ARGUMENT}{i}", leaf) for i, leaf in enumerate(pytree.tree_leaves(arguments)))
    yield from ((f"tensor {i} that the graph writes", value) for i, value in enumerate(written.values()))


def _gradients(model: nn.Module | None, optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """The gradients of the model's parameters that are not the optimizer's: a step adds to them."""
    own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in () if model is None else model.named_parameters():
        if parameter not in own and parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad


def _learned(model: nn.Module | None, optimizer: Optimizer | None) -> set[int]:
    """The ids of all tensors that a training step is to change: parameters, gradients and the optimizer's state."""
    if optimizer is None:
        return set()
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    others = [value for _, value in (*_optimizer_state(optimizer), *_gradients(model, optimizer))]
    return {id(one) for one in (*parameters, *others)}


def _optimizer_state(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Values by names, each one's own: those of parameters that are in no group any more are told apart by number."""
    numbers = {p: f"{g}.{i}" for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}
    for i, (parameter, entries) in enumerate(optimizer.state.items()):
        of = numbers.get(parameter, f"{i} of the state, which is in no group")
        for entry, value in entries.items() if isinstance(entries, dict) else ():
            if value is not None:
                yield f"optimizer's {entry} of parameter {of}", value
