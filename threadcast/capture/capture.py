"""From a callable and example arguments to an op graph that can be measured, scheduled and executed.

The callable is recorded with fake tensors below autograd, so capturing costs no arithmetic and changes nothing.
A training step is forward, backward and the optimizer's update in one graph. What one operator does for several
purposes is split (`splitting`), which is the fine-grained task graph of TurboDL: gradients of inputs hold up the
backward pass, gradients of weights only their own update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.dependencies import memories, writes
from threadcast.capture.lowering import lower
from threadcast.capture.module_state import ModuleState
from threadcast.capture.optimizers import SettingInputs, check_first_step, keep_state, state_of, updates_of
from threadcast.capture.program import Input, Program
from threadcast.capture.python_state import PythonState
from threadcast.capture.recording import Recorder
from threadcast.capture.unsupported import check_function, check_supported
from threadcast.capture.update_check import check_loop, fused_is_right
from threadcast.core.errors import CaptureError
from threadcast.core.graph import OpGraph
from threadcast.threads.memory import return_freed_memory


class ModuleChanged(CaptureError):
    """A call sets an attribute of its module. Where that is a cache that the first call fills, the next does not."""


_FIXED_ARGUMENT = "fixed argument "
"""Begins the names of arguments that are no tensors: their values are part of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph, the program that executes it, and the live tensors that every run takes.

    `held` are the values of all inputs that are not the caller's: parameters, buffers, optimizer state and
    constants by identity, so that a run of a training step updates the model itself.
    """

    graph: OpGraph
    program: Program
    held: Mapping[int, Any]
    arguments: tuple[Tensor, ...]
    """The example arguments, flat, in the order in which `bind` takes them."""
    settings: SettingInputs | None = None
    """The optimizer's numbers, which `bind` reads anew."""
    written: tuple[int, ...] = field(init=False)
    """Slots of inputs that a run writes to."""

    def __post_init__(self) -> None:
        nodes, inputs = self.program.nodes, self.program.inputs
        memory = memories(nodes, inputs)
        written = {memory[ref.slot] for node in nodes for ref in writes(node)}
        object.__setattr__(self, "written", tuple(slot for slot in range(len(inputs)) if memory[slot] in written))

    def bind(self, *arguments: Any) -> list[Any]:
        """The inputs of one run on these arguments (nested as at capture; none: the example's).

        CaptureError for tensors of other shapes or types, or for other values of other arguments, than the example's:
        the graph holds them as numbers. The version counters of tensors that the run will write to are incremented,
        which operators below autograd do not do: by them, who holds a copy of weights notices that it is stale.
        """
        tensors = iter(self._checked(arguments) if arguments else self.arguments)
        if self.settings is not None:
            self.settings.renew()
        entries = enumerate(self.program.inputs)
        inputs = [next(tensors) if entry.role == "input" else self.held[slot] for slot, entry in entries]
        increment_version([inputs[slot] for slot in self.written])
        return inputs

    def run(self, *arguments: Any, order: Sequence[int] | None = None) -> Any:
        """Execute the graph once on the calling thread; what the callable returned comes back."""
        return self.program.run(self.bind(*arguments), order=order)

    def _checked(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        leaves = pytree.tree_leaves(arguments)
        tensors = [value for value in leaves if isinstance(value, Tensor)]
        others = [value for value in leaves if not isinstance(value, Tensor)]
        captured = [self.held[i] for i, e in enumerate(self.program.inputs) if e.name.startswith(_FIXED_ARGUMENT)]
        if len(tensors) != len(self.arguments):
            raise CaptureError(f"{len(tensors)} tensors given, the graph takes {len(self.arguments)}")
        if others != captured:
            raise CaptureError(f"the graph was captured for the arguments {captured}, not {others}; capture it again")
        for i, (given, example) in enumerate(zip(tensors, self.arguments)):
            if (given.shape, given.dtype) != (example.shape, example.dtype):
                raise CaptureError(
                    f"tensor {i} is {given.dtype} of shape {tuple(given.shape)}, the graph was captured for "
                    f"{example.dtype} of shape {tuple(example.shape)}; capture it again for this one"
                )
        return tensors


def capture_forward(function: Callable[..., Any], *inputs: Any, split: bool = True) -> Captured:
    """Capture `function(*inputs)` without gradients. A module is captured in the mode (train or eval) it is in.

    CaptureError says why a callable cannot be captured.
    """
    check_function(function)
    state = _State(function)

    def call(parameters: list[Tensor], buffers: list[Tensor], arguments: Any) -> Any:
        with torch.no_grad():
            return state.call(function, parameters, buffers, arguments)

    groups = {"parameter": state.parameters, "buffer": state.buffers}
    with state.left_alone(function):
        return _capture(call, groups, inputs, Recorder(), settings=None, split=split)


def capture_training(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    inputs: Sequence[Any],
    target: Any,
    *,
    gradients: bool = False,
    split: bool = True,
) -> Captured:
    """Capture one step: `loss(model(*inputs), target)`, its gradients and the optimizer's update.

    A run returns {"loss": ..., "outputs": the model's}, with `gradients` also {"gradients": by parameter name}.
    SGD, Adam and AdamW are known; their numbers (learning rates, momentum, betas, ...) are read at every run.
    CaptureError says why a step cannot be captured, FirstStepMissing that PyTorch must run one first.
    """
    check_supported(model)
    check_function(loss)
    state = _State(model)
    updates = updates_of(optimizer)
    own = set(map(id, state.parameters.values()))
    strange = [parameter for parameter in updates if parameter.requires_grad and id(parameter) not in own]
    trained = [(n, p) for n, p in state.parameters.items() if p.requires_grad and p in updates]
    if not trained:
        raise CaptureError("no parameter requires a gradient and belongs to the optimizer: there is nothing to train")
    states = {name: state_of(optimizer, parameter, updates[parameter]) for name, parameter in trained}
    flat_states = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
    group_of = {parameter: i for i, group in enumerate(optimizer.param_groups) for parameter in group["params"]}
    fused = {name: fused_is_right(updates[p], p, list(states[name].values())) for name, p in trained}
    for name, parameter in trained:
        if not fused[name]:
            check_loop(updates[parameter], parameter, list(states[name].values()))
    settings = SettingInputs(optimizer)
    updated: list[tuple[str, Tensor]] = []
    recorder = Recorder()

    def step(
        parameters: list[Tensor], buffers: list[Tensor], state_list: list[Tensor], numbers: list[Tensor], data: Any
    ) -> Any:
        arguments, wanted = data
        outputs = state.call(model, parameters, buffers, arguments)
        value = loss(outputs, wanted)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise CaptureError(f"loss must return a tensor of one element, got {_describe(value)}")
        live = dict(zip(state.parameters, parameters))
        recorder.phase = "backward"
        wanted_of = [*(live[name] for name, _ in trained), *strange]
        found = torch.autograd.grad(value, wanted_of, allow_unused=True)
        if any(gradient is not None for gradient in found[len(trained) :]):
            raise CaptureError("the optimizer trains parameters that are not the model's, which a graph would miss")
        recorder.phase = "update"
        remaining, given = dict(zip(flat_states, state_list)), dict(zip(settings.tensors, numbers))
        known: dict[tuple[int, bool], dict[str, Any]] = {}
        with torch.no_grad():
            for (name, parameter), gradient in zip(trained, found):
                if gradient is not None:
                    check_first_step(optimizer, parameter, updates[parameter])
                    mine = [remaining[f"{name}.{key}"] for key in states[name]]
                    of = group_of[parameter], fused[name]
                    if of not in known:
                        known[of] = settings.numbers(of[0], given, recorder.number, fused=of[1])
                    updates[parameter].apply(live[name], gradient, mine, known[of], fused=of[1])
                    updated.append((name, parameter))
        result = {"loss": value, "outputs": outputs}
        if gradients:
            result["gradients"] = {name: g for (name, _), g in zip(trained, found) if g is not None}
        return result

    groups = {
        "parameter": state.parameters, "buffer": state.buffers, "state": flat_states, "setting": settings.tensors,
    }  # fmt: skip
    with state.left_alone(model, loss):
        captured = _capture(step, groups, (tuple(inputs), target), recorder, settings=settings, split=split)
    for name, parameter in updated:
        keep_state(optimizer, parameter, states[name])
    return captured


class _State:
    """The parameters and buffers of a module, shared ones once; none for a plain function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.module = function if isinstance(function, nn.Module) else nn.Module()
        self.parameters: dict[str, Tensor] = dict(self.module.named_parameters())
        self.buffers: dict[str, Tensor] = dict(self.module.named_buffers())
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
        """Call the function on these values in place of its own."""
        if not isinstance(function, nn.Module):
            return function(*arguments)
        live = {**dict(zip(self.parameters, parameters)), **dict(zip(self.buffers, buffers))}
        values = {place: live[name] for place, name in self._places.items()}
        given = dict(values)
        result = functional_call(function, values, arguments, tie_weights=False)
        for name, value in values.items():
            if value is not given[name]:
                raise CaptureError(f"cannot capture: {name} is exchanged for another tensor instead of written to")
        return result

    @contextmanager
    def left_alone(self, *functions: Any) -> Iterator[None]:
        """Put the module's attributes, and whatever `functions` can reach, back at the end.

        ModuleChanged where anything was set.
        """
        reads = PythonState(functions)
        if reads.unwatchable is not None:
            raise CaptureError(f"cannot capture: it reads {reads.unwatchable}")
        check_supported(nn.ModuleList(reads.modules))
        modules = ModuleState(nn.ModuleList([self.module, *reads.modules]))
        try:
            yield
        finally:
            of_modules, elsewhere = modules.restore(), reads.restore()
        changed = of_modules or elsewhere
        if changed is not None:
            raise ModuleChanged(f"cannot capture: {changed} is set in every call, which a graph would not do")


def _capture(
    function: Callable[..., Any],
    groups: Mapping[str, Mapping[str, Tensor]],
    arguments: tuple[Any, ...],
    recorder: Recorder,
    *,
    settings: SettingInputs | None,
    split: bool,
) -> Captured:
    recording = recorder.record(function, [*(list(group.values()) for group in groups.values()), arguments])
    inputs = [Input(role, name) for role, group in groups.items() for name in group]  # type: ignore[arg-type]
    held: dict[int, Any] = dict(enumerate(tensor for group in groups.values() for tensor in group.values()))
    leaves, paths = pytree.tree_leaves(arguments), []
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            held[len(inputs) + i] = leaf
        is_tensor = isinstance(leaf, Tensor)
        paths.append(Input("input", f"argument {i}") if is_tensor else Input("constant", f"{_FIXED_ARGUMENT}{i}"))
    given = [*(tensor for group in groups.values() for tensor in group.values()), *leaves]
    lowered = lower(recording, [*inputs, *paths], given, split=split)
    if not lowered.program.nodes:
        raise CaptureError("cannot capture: nothing is computed")
    held.update(lowered.constants)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return_freed_memory()
    return Captured(lowered.graph, lowered.program, held, tensors, settings)


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
