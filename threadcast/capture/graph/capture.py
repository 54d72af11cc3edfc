"""From a callable and example arguments to an op graph that can be measured, scheduled and executed.

The callable is recorded with fake tensors below autograd, so capturing costs no arithmetic and changes nothing.
A training step is forward, backward and the optimizer's update in one graph. An operator that computes several
gradients is split into one op for each (`splitting`), as in the fine-grained task graph of TurboDL: gradients of inputs
hold up the backward pass, gradients of weights only their own update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.graph.closed_over import check_constants
from threadcast.capture.graph.dependencies import is_random, memories, writes
from threadcast.capture.graph.lowering import lower
from threadcast.capture.graph.number_reads import NumberReads
from threadcast.capture.graph.optimizers import SettingInputs
from threadcast.capture.graph.program import Input, Phase, Program
from threadcast.capture.graph.raising import may_raise
from threadcast.capture.graph.recorder import Recorder
from threadcast.capture.graph.result_views import ResultView, views_among
from threadcast.capture.graph.sizes import ArgumentSizes, Dynamic
from threadcast.capture.graph.training_step import OTHERS, Objective, TrainingStep
from threadcast.capture.graph.unsafe_kernels import check_kernels
from threadcast.capture.graph.values import find_refs
from threadcast.capture.guards.argument_classes import own_classes
from threadcast.capture.guards.module_values import ModuleValues
from threadcast.capture.guards.one_capture import one_capture
from threadcast.capture.guards.random_state import told_apart
from threadcast.capture.guards.unsupported import check_function, check_supported
from threadcast.core.errors import CaptureError
from threadcast.core.graph import OpGraph
from threadcast.threads.memory import return_freed_memory

_FIXED_ARGUMENT = "fixed argument "
"""Prefix of the names of arguments that are not tensors: their values are part of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A graph, the program that executes it, and the live tensors that every run takes.

    `held` maps slots to the values of all inputs that are not the caller's: parameters, buffers, optimizer state and
    constants. They are the same objects as the model's, so that a run of a training step updates the model itself.
    """

    graph: OpGraph
    program: Program
    held: Mapping[int, Any]
    arguments: tuple[Tensor, ...]
    """The example arguments, flat, in the order in which `bind` takes them."""
    settings: SettingInputs | None = None
    """The optimizer's numbers, such as the learning rate, which `bind` reads anew; None for a forward pass."""
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters, by name, that require a gradient and are not the optimizer's: `finish` adds to their `.grad`."""
    sizes: ArgumentSizes | None = None
    """How the inputs of role "size" follow from the arguments; None where the graph is right for the example's only."""
    reads: NumberReads | None = None
    """The numbers that calls must read out of tensors for the graph to be right; None where it is right for all."""
    weakly: bool = False
    """Whether `held` does not keep the caller's tensors alive."""
    apart: tuple[int, ...] = ()
    """Positions of results to be detached from what a run returns: that is another result or an input, or may require a
    gradient."""
    restore: Callable[[Any], Any] | None = None
    """What gives the results of a run the strides that they have in PyTorch; None where they have them."""
    random: bool = field(init=False)
    """Whether a run draws random numbers."""
    written: tuple[int, ...] = field(init=False)
    """Slots of inputs that a run writes to."""
    raises: bool = field(init=False)
    """Whether an operator may raise because of values."""
    early: tuple[int, ...] = field(init=False)
    """Those of `written` that a run may have written to when an operator raises because of values."""
    _held: list[Any] = field(init=False)
    """By slot, what `held` has; None for what the caller gives. Empty where `held` keeps nothing alive."""
    _given: tuple[tuple[int, bool], ...] = field(init=False)
    """Slots of what the caller gives, in their order, each with whether that is a size."""
    _fixed: tuple[int, ...] = field(init=False)
    """Slots of arguments that are not tensors, and that must have the example's values."""
    _views: tuple[ResultView, ...] = field(init=False)
    """Results that lie in the memory of an input or of an earlier result."""
    _fresh: frozenset[str] = field(init=False)
    """Those of `others` whose gradient is in memory of its own, which nothing else refers to after a run."""

    def __post_init__(self) -> None:
        nodes, inputs = self.program.nodes, self.program.inputs
        object.__setattr__(self, "random", any(map(is_random, nodes)))
        memory = memories(nodes, inputs)
        written = {memory[ref.slot] for node in nodes for ref in writes(node)}
        object.__setattr__(self, "written", tuple(slot for slot in range(len(inputs)) if memory[slot] in written))
        last = max((i for i, node in enumerate(nodes) if may_raise(node)), default=0)
        written = {memory[ref.slot] for node in nodes[:last] for ref in writes(node)}  # others wait (`dependencies`)
        object.__setattr__(self, "raises", any(map(may_raise, nodes)))
        object.__setattr__(self, "early", tuple(slot for slot in self.written if memory[slot] in written))
        slots = () if self.weakly else range(len(inputs))
        object.__setattr__(self, "_held", [self.held.get(slot) for slot in slots])
        given = tuple((slot, one.role == "size") for slot, one in enumerate(inputs) if one.role in ("input", "size"))
        object.__setattr__(self, "_given", given)
        varying = {} if self.sizes is None else self.sizes.dims
        fixed = ((slot, _fixed_number(one.name)) for slot, one in enumerate(inputs))
        object.__setattr__(self, "_fixed", tuple(slot for slot, at in fixed if at is not None and at not in varying))
        object.__setattr__(self, "_views", tuple(views_among(self.program)))
        object.__setattr__(self, "_fresh", _in_own_memory(self.program) if self.others else frozenset())

    def bind(self, *arguments: Any) -> list[Any]:
        """The inputs of one run on these arguments, nested as at capture; without arguments, on the example's.

        CaptureError where a tensor has another shape or type than the example's, or another argument has another value,
        or where a number that is read out of a tensor is another: the graph has these built in. A training step drops
        the gradients that its parameters have, as `zero_grad` does before it. The version counters of tensors that the
        run will write to are incremented, which operators below autograd do not do. By these counters code with a copy
        of the weights notices that it is stale.
        """
        given = self._checked(arguments) if arguments else self.arguments
        if self.reads is not None and not self.reads.hold(given):
            raise CaptureError("the graph was captured for other numbers in tensors; capture it again for these")
        tensors, sizes = iter(given), iter(self._sizes_of(arguments))
        if self.settings is not None:
            self.settings.begin_step()
        inputs = self._held.copy()
        for slot, of_size in self._given:
            inputs[slot] = next(sizes) if of_size else next(tensors)
        increment_version([inputs[slot] for slot in self.written])
        return inputs

    def written_early(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """Those of a run's arguments that are in the slots `early`."""
        if not any(self.program.inputs[slot].role == "input" for slot in self.early):
            return []
        slots = (slot for slot, of_size in self._given if not of_size)
        given = dict(zip(slots, self._checked(arguments), strict=True))
        return [given[slot] for slot in self.early if slot in given]

    def finish(self, result: Any, inputs: Sequence[Any] = ()) -> Any:
        """Do what is left to do with the result of a run on `inputs`, and return the result.

        Views of inputs and of other results become views to autograd, too, which so notices where one of both is
        written. Results `apart` become tensors of their own, detached from what they are, and `restore` has its effect.
        The gradients of `others` are removed and added to their `.grad`, as PyTorch does.
        """
        if self.apart or (self._views and inputs):
            found, structure = pytree.tree_flatten(result)
            for view in self._views if inputs else ():
                view.let_see(found, inputs)
            result = pytree.tree_unflatten(self._apart(found), structure)
        if self.restore is not None:
            result = self.restore(result)
        for name, gradient in (result.pop(OTHERS, {}) if self.others else {}).items():
            parameter = self.others[name]
            if parameter.grad is None and name in self._fresh and _fills_memory_as(gradient, parameter):
                parameter.grad = gradient
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter).copy_(gradient)
            else:
                parameter.grad += gradient
        return result

    def _apart(self, found: list[Any]) -> list[Any]:
        for position in self.apart:
            found[position] = found[position].detach()
        return found

    def run(self, *arguments: Any, order: Sequence[int] | None = None) -> Any:
        """Execute the graph once on the calling thread; return what the captured callable would return.

        `order` is any topological order of the graph (None: the captured one).
        """
        inputs = self.bind(*arguments)
        return self.finish(self.program.run(inputs, order=order), inputs)

    def _sizes_of(self, arguments: tuple[Any, ...]) -> Sequence[int]:
        """The values of the inputs of role "size"; CaptureError where the graph is not right for these sizes."""
        if self.sizes is None:
            return ()
        if not arguments:
            return self.sizes.values(*self.sizes.example)
        sizes = self.sizes.of(pytree.tree_leaves(arguments))
        if not self.sizes.fits(*sizes):
            raise CaptureError(f"the graph is not right for sizes {sizes}; capture it again for these")
        return self.sizes.values(*sizes)

    def _checked(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        leaves = pytree.tree_leaves(arguments)
        tensors = [value for value in leaves if isinstance(value, Tensor)]
        varying = {} if self.sizes is None else self.sizes.dims
        others = [value for i, value in enumerate(leaves) if not isinstance(value, Tensor) and i not in varying]
        captured = [self.held[slot] for slot in self._fixed]
        if len(tensors) != len(self.arguments):
            raise CaptureError(f"{len(tensors)} tensors given, the graph takes {len(self.arguments)}")
        if list(map(repr, others)) != list(map(repr, captured)):  # 1 is not 1.0 or True, nor 0.0 -0.0
            raise CaptureError(f"the graph was captured for the arguments {captured}, not {others}; capture it again")
        numbers = (i for i, value in enumerate(leaves) if isinstance(value, Tensor))
        for i, number, given, example in zip(range(len(tensors)), numbers, tensors, self.arguments, strict=True):
            if given.dtype != example.dtype or not _same_shape(given, example, varying.get(number, ())):
                raise CaptureError(
                    f"tensor {i} is {given.dtype} of shape {tuple(given.shape)}, the graph was captured for "
                    f"{example.dtype} of shape {tuple(example.shape)}; capture it again for this one"
                )
        return tensors


def _fixed_number(name: str) -> int | None:
    """The number of the argument of which an input has the fixed value; None for other inputs."""
    return int(name.removeprefix(_FIXED_ARGUMENT)) if name.startswith(_FIXED_ARGUMENT) else None


def _in_own_memory(program: Program) -> frozenset[str]:
    """Names of the gradients of `OTHERS` that share memory with no input and no other result."""
    memory = memories(program.nodes, program.inputs, undeclared=True)
    results = pytree.tree_unflatten(list(program.outputs), program.structure)
    uses = Counter(memory[ref.slot] for ref in find_refs(program.outputs))
    return frozenset(
        name
        for name, ref in results.get(OTHERS, {}).items()
        if memory[ref.slot] >= len(program.inputs) and uses[memory[ref.slot]] == 1
    )


def _fills_memory_as(gradient: Tensor, parameter: Tensor) -> bool:
    """Whether the gradient fills its memory, in the order in which the parameter fills its own."""
    whole = gradient.untyped_storage().nbytes() == gradient.nbytes
    return whole and gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype


def _same_shape(given: Tensor, example: Tensor, varying: Collection[int | None]) -> bool:
    """Whether two tensors have the same shape but for the dimensions of `varying`, in which both are contiguous."""
    if not varying:
        return given.shape == example.shape
    sides = enumerate(zip(given.shape, example.shape, strict=True)) if given.dim() == example.dim() else ()
    return given.dim() == example.dim() and given.is_contiguous() and all(
        one == other or dim in varying for dim, (one, other) in sides
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph(Captured):
    """A captured graph that reads its arguments and weights alone, as `capture_graph` returns it."""

    weights: int = 0
    """Number of inputs that are weights; they are the first slots."""

    def bind(self, *arguments: Any) -> list[Any]:
        """The inputs of one run on these arguments, flat, which must have the shapes, types and values of capture.

        The caller has checked that: looking at each of some hundred weights once more takes longer than a small graph.
        """
        slots, sizes = range(len(self.program.inputs)), iter(self._sizes_of(arguments))
        others = [
            next(sizes) if self.program.inputs[slot].role == "size" else self.held[slot]
            for slot in slots[self.weights + len(arguments) :]
        ]
        return [*[self.held[slot] for slot in slots[: self.weights]], *arguments, *others]

    def constants(self, arguments: int) -> list[Any] | None:
        """What a run takes after so many arguments; None where it takes weights before them, or sizes."""
        slots = range(arguments, len(self.program.inputs))
        if self.weights or any(self.program.inputs[slot].role == "size" for slot in slots):
            return None
        return [self.held[slot] for slot in slots]

    def finish(self, result: Any, inputs: Sequence[Any] = ()) -> Any:
        """Return the results as a list, each that is a tensor of its own in the graph as one: autograd marks them."""
        return self._apart(list(result))


@told_apart
@one_capture()
def capture_forward(
    function: Callable[..., Any], *inputs: Any, dynamic: Dynamic | None = None, repeated: bool = False
) -> Captured:
    """Capture `function(*inputs)` without gradients. A module is captured in the mode (train or eval) it is in.

    The graph is right for all values of the sizes that `dynamic` names, by number of the leaf of `inputs`; the tensors
    must be contiguous. With `repeated` an input that comes twice, or is one of the module's own tensors, is so in every
    call: to the function it is one tensor, two others without. CaptureError says why a callable cannot be captured.
    """
    check_function(function)
    module = ModuleValues(function)

    def call(parameters: list[Tensor], buffers: list[Tensor], arguments: Any) -> Any:
        with torch.no_grad():
            found = module.call(function, parameters, buffers, arguments)
        held = {one.untyped_storage()._cdata for one in (*parameters, *buffers)}
        made = (leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, FakeTensor) and leaf.requires_grad)
        if any(leaf.untyped_storage()._cdata not in held for leaf in made):  # views of parameters do so without it
            raise CaptureError("cannot capture: a result requires a gradient (enable_grad), which a graph's would not")
        return found

    groups = {"parameter": module.parameters, "buffer": module.buffers}
    recorder = Recorder()
    with module.left_alone(function, *own_classes(inputs)) as recorder.caches:
        captured = _capture(
            call, groups, inputs, recorder, settings=None, split=True, dynamic=dynamic, repeated=repeated
        )  # fmt: skip
    check_constants(captured.program, captured.held, captured.written, module.reached)
    return captured


@told_apart
@one_capture()
def capture_graph(
    graph: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    weights: Sequence[Tensor] | None = None,
    phase: Phase = "forward",
    dynamic: Dynamic | None = None,
) -> CapturedGraph:
    """Capture a graph of operators below autograd that has no state, such as AOTAutograd's: all it reads are `inputs`.

    It must return a flat list or tuple. Of the inputs only the shapes are kept, so `bind` needs arguments. With
    `weights`, `graph(weights, *inputs)` is captured, and the captured graph holds weights and inputs. `dynamic` is as
    that of `capture_forward`. CaptureError says why the graph cannot be captured, as where it writes to an input.
    """
    recorder = Recorder(fixed_offsets=True)  # of views that AOTAutograd makes of memory which inputs share
    recorder.phase = phase

    def call(held: list[Tensor], arguments: tuple[Any, ...]) -> Any:
        with torch.no_grad():
            return graph(*arguments) if weights is None else graph(held, *arguments)

    examples = tuple(value.detach() if isinstance(value, Tensor) else value for value in inputs)
    group = {f"weight {i}": weight for i, weight in enumerate(weights or ())}
    captured = _capture(call, {"parameter": group}, examples, recorder, settings=None, split=True, dynamic=dynamic)
    if captured.written:
        raise CaptureError("cannot capture: a graph writes to an input of its own")
    shapes = tuple(value.to("meta") for value in captured.arguments)
    return CapturedGraph(
        captured.graph, captured.program, captured.held, shapes if weights is None else captured.arguments,
        sizes=captured.sizes, apart=captured.apart, weights=len(group),
    )  # fmt: skip


def capture_training(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    inputs: Sequence[Any],
    target: Any,
    *,
    gradients: bool = False,
    split: bool = True,
    dynamic: Dynamic | None = None,
) -> Captured:
    """Capture one step: `loss(model(*inputs), target)`, its gradients and the optimizer's update.

    A run returns {"loss": ..., "outputs": the model's}, with `gradients` also {"gradients": by parameter name}. The
    rest is as `capture_step` says; leaves are counted from the inputs' first to the target's last.
    """

    def objective(model: nn.Module, inputs: tuple[Any, ...], target: Any) -> tuple[dict[str, Any], Tensor]:
        outputs = model(*inputs)
        value = loss(outputs, target)
        return {"loss": value, "outputs": outputs}, value

    data = tuple(inputs), target
    return capture_step(
        model, objective, optimizer, data, functions=(loss,), gradients=gradients, split=split, dynamic=dynamic
    )


@told_apart
@one_capture()
def capture_step(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer,
    data: tuple[Any, ...],
    *,
    functions: Sequence[Callable[..., Any]] = (),
    gradients: bool = False,
    split: bool = True,
    dynamic: Dynamic | None = None,
    repeated: bool = False,
    most_norm: float | None = None,
) -> Captured:
    """Capture one step: `objective(model, *data)`, the gradients of its second result, and the optimizer's update.

    A run returns the first result of `objective`, a dictionary. It adds to the `.grad` of parameters that require a
    gradient and are not the optimizer's: of all with `NoUpdate`. `functions` are those that `objective` calls.
    SGD, Adam and AdamW are known; their numbers (learning rates, momentum, betas, ...) are read at every run.
    With `most_norm` gradients are clipped before the update, as `torch.nn.utils.clip_grad_norm_` does it for all of the
    model's. `split` divides an operator that computes several gradients into one op for each. `dynamic` and `repeated`
    are as those of `capture_forward`; leaves are counted in `data`. CaptureError says why a step cannot be captured;
    OptimizerRefused, which is one, that it is for the optimizer, and FirstStepMissing that PyTorch must run one step
    first.
    """
    check_supported(model)
    for function in functions:
        check_function(function)
    recorder = Recorder()
    step = TrainingStep(model, objective, optimizer, recorder, gradients=gradients, most_norm=most_norm)
    with step.module.left_alone(model, *functions, *own_classes(data)) as recorder.caches:
        captured = _capture(
            step, step.groups, data, recorder, settings=step.settings, split=split, dynamic=dynamic, repeated=repeated
        )  # fmt: skip
        captured = replace(captured, others=step.others)
    constants = (
        captured.held.get(slot) for slot, entry in enumerate(captured.program.inputs) if entry.role == "constant"
    )
    step.check_constants(value for value in constants if isinstance(value, Tensor))
    check_constants(captured.program, captured.held, captured.written, step.module.reached)
    step.keep_states()
    return captured


def _capture(
    function: Callable[..., Any],
    groups: Mapping[str, Mapping[str, Tensor]],
    arguments: tuple[Any, ...],
    recorder: Recorder,
    *,
    settings: SettingInputs | None,
    split: bool,
    dynamic: Dynamic | None = None,
    repeated: bool = False,
) -> Captured:
    first = sum(map(len, groups.values()))
    shifted = {first + leaf: dims for leaf, dims in (dynamic or {}).items()}
    given_groups = [list(group.values()) for group in groups.values()]
    recording = recorder.record(function, [*given_groups, arguments], dynamic=shifted, own=first, repeated=repeated)
    inputs = [Input(role, name) for role, group in groups.items() for name in group]  # type: ignore[arg-type]
    held: dict[int, Any] = dict(enumerate(tensor for group in groups.values() for tensor in group.values()))
    leaves, paths = pytree.tree_leaves(arguments), []
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            held[len(inputs) + i] = leaf
        is_tensor = isinstance(leaf, Tensor)
        paths.append(Input("input", f"argument {i}") if is_tensor else Input("constant", f"{_FIXED_ARGUMENT}{i}"))
    given = [*(tensor for group in groups.values() for tensor in group.values()), *leaves]
    lowered = lower(recording, [*inputs, *paths], given, split=split, static=not dynamic)
    if not lowered.program.nodes:
        raise CaptureError("cannot capture: nothing is computed")
    check_kernels(lowered.program.nodes, lowered.graph.ops)
    held.update(lowered.constants)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return_freed_memory()
    symbols = recorder.symbols
    sizes = None if symbols is None else symbols.sizes(lowered.sizes, first=first, leaves=leaves)
    captured = Captured(
        lowered.graph, lowered.program, held, tensors, settings, sizes=sizes, reads=recorder.reads, apart=lowered.apart
    )  # fmt: skip
    if captured.reads is not None and captured.reads.of_any(captured.held.get(slot) for slot in captured.written):
        raise CaptureError("cannot capture: a number is read out of a tensor that each call writes to")
    return captured
