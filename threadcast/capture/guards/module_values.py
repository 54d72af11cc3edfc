"""The tensors of a module, calls of it with others in their places, and a snapshot of all that such a call may set.

A capture leaves none of its fake tensors behind: whatever it has set is put back, and the call is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from threadcast.capture.guards.function_caches import FunctionCaches
from threadcast.capture.guards.places import Dictionary, Place
from threadcast.capture.guards.python_state import Container, PythonState, Table
from threadcast.capture.guards.read_names import FOLLOWS_PARAMETERS
from threadcast.capture.guards.unsupported import check_supported
from threadcast.core.errors import CaptureError


class ModuleState:
    """A snapshot of the attributes of a module and its submodules, to restore them later.

    It includes the contents of attributes that are lists, sets or dictionaries, and the parameters' gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        self._held: list[Table | Container] = []
        self._set_by_pytorch: list[Container] = []
        for part in module.modules():
            place, own = Place(part, type(part).__name__), FOLLOWS_PARAMETERS if isinstance(part, nn.RNNBase) else ()
            attributes = Dictionary(vars(part), place, "attributes")
            self._held.append(Table(attributes, None, dict(vars(part)), besides=frozenset(own)))
            for name, value in vars(part).items():
                if isinstance(value, dict):
                    self._held.append(Table(Dictionary(value, place.part(value, name), "items"), None, dict(value)))
                elif isinstance(value, list | set):
                    kept = Container.at(place.part(value, name))
                    (self._set_by_pytorch if name in own else self._held).append(kept)
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]

    def restore(self) -> str | None:
        """Restore everything; return the name of the first thing that had changed, None where nothing had."""
        changed = list[str]()
        for held in self._held:
            if (what := held.difference()) is not None:
                changed.append(what)
            if what is not None or (isinstance(held, Table) and held.besides):
                held.restore()
        for kept in self._set_by_pytorch:
            kept.restore()
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                changed.append("a parameter's gradient")
                parameter.grad = gradient
        return next(iter(changed), None)


class ModuleChanged(CaptureError):
    """A call sets an attribute of its module, so it cannot be captured.

    Where the attribute is a cache that the first call fills, later calls do not set it and can be captured.
    """


_SET = "cannot capture: {} is set in every call, which a graph would not do"


class ModuleValues:
    """The parameters and buffers of a module, shared ones once; none for a plain function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.module = function if isinstance(function, nn.Module) else nn.Module()
        self.parameters: dict[str, Tensor] = dict(self.module.named_parameters())
        self.buffers: dict[str, Tensor] = dict(self.module.named_buffers())
        self.reached: list[Tensor] = []
        """The tensors that the callables can reach which `left_alone` was asked for last."""
        names = {id(tensor): name for name, tensor in {**self.parameters, **self.buffers}.items()}
        self._places = {
            f"{at}.{key}" if at else key: names[id(tensor)]
            for at, part in self.module.named_modules()  # each once, by whichever names it is known
            for key, tensor in {**part._parameters, **part._buffers}.items()
            if tensor is not None
        }
        """Where each tensor is held, by module: shared ones are in several. `functional_call`'s own search would put a
        module that has two names back with the wrong tensors."""

    def call(
        self, function: Callable[..., Any], parameters: list[Tensor], buffers: list[Tensor], arguments: Any
    ) -> Any:
        """Return what `function` returns while the module has these parameters and buffers in place of its own.

        `function` may be the module or any callable that reads the module. CaptureError where the call replaces one of
        them by another tensor instead of writing to it, ModuleChanged where it sets a Python attribute of one.
        """
        live = {**dict(zip(self.parameters, parameters)), **dict(zip(self.buffers, buffers))}
        values = {f"module.{place}": live[name] for place, name in self._places.items()}
        given = dict(values)
        with _attributes_of({**self.parameters, **self.buffers}, live):
            result = functional_call(_Reader(self.module, function), values, arguments, tie_weights=False)
        for name, value in values.items():
            if value is not given[name]:
                place = name.removeprefix("module.")
                raise CaptureError(f"cannot capture: {place} is exchanged for another tensor instead of written to")
        return result

    @contextmanager
    def left_alone(self, *functions: Any) -> Iterator[FunctionCaches]:
        """At the end of the block restore the module's attributes and all Python values that `functions` can reach.

        ModuleChanged where the block changed any of them. CaptureError where changes of a value would not be noticed.
        Yields the caches of functions that can be reached; CacheFilled where one holds a fake tensor at the end.
        """
        reads = PythonState(functions)
        if reads.unwatchable is not None:
            raise CaptureError(f"cannot capture: it reads {reads.unwatchable}")
        held = (value for part in reads.modules for value in (*part._buffers.values(), *vars(part).values()))
        self.reached = [*reads.tensors, *(value for value in held if isinstance(value, Tensor))]
        check_supported(nn.ModuleList(reads.modules))
        modules = ModuleState(nn.ModuleList([self.module, *reads.modules]))
        caches = FunctionCaches(reads.caches)
        memory = [(tensor, tensor.detach()) for tensor in self.reached if tensor.layout is torch.strided]
        failed: RuntimeError | None = None
        try:
            yield caches
        except RuntimeError as error:
            failed = error
            raise
        finally:
            moved = _moved_back(memory)
            changed = [what for what in (reads.restore(), modules.restore(), moved) if what is not None]
            filled = caches.clear_filled()
            if moved is not None and failed is not None:  # by fake memory
                raise ModuleChanged(_SET.format(moved)) from failed
        if changed:
            raise ModuleChanged(_SET.format(changed[0]))
        if filled is not None:
            raise filled


def _moved_back(held: Iterable[tuple[Tensor, Tensor]]) -> str | None:
    """Give tensors that got other memory than their aliases by `tensor.data = ...` their own; what changed."""
    moved = None
    for tensor, alias in held:
        if tensor.device != alias.device or tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape:
            tensor.data, moved = alias, "the memory of a tensor"
    return moved


@contextmanager
def _attributes_of(tensors: Mapping[str, Tensor], stand_ins: Mapping[str, Tensor]) -> Iterator[None]:
    """Within the block `stand_ins` have the Python attributes of `tensors`, which code may read (`parameter.no_decay`).

    ModuleChanged where the block sets any.
    """
    pairs = [(vars(stand_ins[name]), vars(tensor)) for name, tensor in tensors.items() if stand_ins[name] is not tensor]
    own = [frozenset(held) for held, _ in pairs]
    for held, attributes in pairs:  # a fake of a buffer says that it is one, as the buffer does
        if name := next((one for one in held.keys() & attributes.keys() if held[one] is not attributes[one]), None):
            raise CaptureError(f"cannot capture: a parameter or buffer has an attribute {name!r}, as fake tensors have")
        held.update(attributes)
    yield
    for (held, attributes), known in zip(pairs, own, strict=True):
        for name in attributes.keys() | (held.keys() - known):
            if held.get(name, pairs) is not attributes.get(name, pairs):  # `pairs` is no attribute
                raise ModuleChanged(_SET.format(f"{name} of a parameter or buffer"))


class _Reader(nn.Module):
    """Calls a function that reads `module`, which `functional_call` finds as a submodule."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._call = (function,)  # in a tuple: as an attribute, a module would be a second submodule

    def forward(self, *arguments: Any) -> Any:
        return self._call[0](*arguments)
