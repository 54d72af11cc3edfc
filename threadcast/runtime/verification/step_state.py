"""Copies of all that a step may change, so that the same step can be run twice from the same state."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.module_state import ModuleState

MOST_OF_FREE_MEMORY = 0.5
"""Share of the memory that is free which copies may take."""


class StepState:
    """A model, its optimizer, a step's arguments and the random generators, as they are now.

    `restore` puts everything back where it was: the tensors stay the same objects in the same place. It takes as much
    memory as the parameters, buffers, optimizer state and arguments together (`needed_bytes`). `others` are tensors
    besides that a step may write, such as those that a function had closed over.
    """

    def __init__(
        self, model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, *, others: Iterable[Tensor] = ()
    ) -> None:
        self._tensors = dict(_named(model, optimizer, arguments, others))
        with torch.no_grad():
            self.values: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        self._attributes = ModuleState(model) if model is not None else None
        self._optimizer = optimizer
        self._own = dict(vars(optimizer)) if optimizer is not None else {}
        self._state = {} if optimizer is None else {p: dict(entries) for p, entries in optimizer.state.items()}
        for name, value in _plain_state(model, optimizer):
            self.values[name] = copy.deepcopy(value)
        self._generators = torch.get_rng_state(), random.getstate()

    def now(self) -> dict[str, Any]:
        """Copies of the same values as they are at this moment, by name, and of those that have come since."""
        found: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        names = {id(tensor) for tensor in self._tensors.values()}
        if self._optimizer is not None:
            for name, value in _optimizer_state(self._optimizer):
                if not isinstance(value, Tensor):
                    found[name] = copy.deepcopy(value)
                elif id(value) not in names:
                    found[name] = value.detach().clone()
        found[GENERATOR] = torch.get_rng_state()
        return found

    def restore(self) -> None:
        """Put everything back as it was when this was made."""
        for name, tensor in self._tensors.items():
            with torch.no_grad():
                tensor.detach().copy_(self.values[name])
        if self._attributes is not None:
            self._attributes.restore()
        if self._optimizer is not None:
            vars(self._optimizer).clear()
            vars(self._optimizer).update(self._own)
            state = self._optimizer.state
            for parameter in [parameter for parameter in state if parameter not in self._state]:
                del state[parameter]
            for parameter, entries in self._state.items():
                state[parameter].clear()
                state[parameter].update(entries)
        generator, python = self._generators
        torch.set_rng_state(generator)
        random.setstate(python)

    def change(self, change: Mapping[str, Tensor]) -> None:
        """Write other numbers into the tensors of these names."""
        for name, value in change.items():
            with torch.no_grad():
                self._tensors[name].detach().copy_(value)

    def name_of(self, tensor: Tensor) -> str | None:
        """The name under which a live tensor's values are kept; None for another tensor."""
        return next((name for name, mine in self._tensors.items() if mine is tensor), None)


GENERATOR = "the random generator's state"


def needed_bytes(model: nn.Module | None, optimizer: Optimizer | None, arguments: Any) -> int:
    """Memory that one `StepState` takes."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _named(model, optimizer, arguments, ()))


def free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


def too_large(needed: int, free: int | None) -> str | None:
    """Why `needed` bytes of copies cannot be made beside what else is in memory; None where they can."""
    if free is None or needed <= MOST_OF_FREE_MEMORY * free:
        return None
    return (
        f"copies of parameters, buffers and optimizer state would take {needed / 2**30:.1f} GiB of "
        f"{free / 2**30:.1f} GiB that are free"
    )


def _named(
    model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, others: Iterable[Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Each strided tensor once, with a name for people."""
    known: set[int] = set()
    for name, value in _all_values(model, optimizer, arguments, others):
        if isinstance(value, Tensor) and id(value) not in known and value.layout is torch.strided:
            known.add(id(value))
            yield name, value


def _all_values(
    model: nn.Module | None, optimizer: Optimizer | None, arguments: Any, others: Iterable[Tensor]
) -> Iterator[tuple[str, Any]]:
    if model is not None:
        yield from model.named_parameters()
        yield from model.named_buffers()
        for at, part in model.named_modules():
            yield from ((f"{at}.{name}".lstrip("."), value) for name, value in vars(part).items())
    if optimizer is not None:
        yield from _optimizer_state(optimizer)
    yield from ((f"argument {i}", leaf) for i, leaf in enumerate(pytree.tree_leaves(arguments)))
    yield from ((f"constant {i}", value) for i, value in enumerate(others))


def _optimizer_state(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    numbers = {p: f"{g}.{i}" for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])}
    for parameter, entries in optimizer.state.items():
        for entry, value in entries.items():
            if value is not None:
                yield f"optimizer's {entry} of parameter {numbers.get(parameter, '?')}", value


def _plain_state(model: nn.Module | None, optimizer: Optimizer | None) -> Iterator[tuple[str, Any]]:
    if optimizer is not None:
        yield from ((name, value) for name, value in _optimizer_state(optimizer) if not isinstance(value, Tensor))
