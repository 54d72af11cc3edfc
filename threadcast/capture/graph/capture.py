"""From a callable and example arguments to an op graph that can be measured, scheduled and executed.

The callable is recorded with fake tensors below autograd, so capturing costs no arithmetic and changes nothing.
A training step is forward, backward and the optimizer's update in one graph. An operator that computes several
gradients is split into one op for each (`rewriting`), as in the fine-grained task graph of TurboDL: gradients of inputs
hold up the backward pass, gradients of weights only their own update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import FIXED_ARGUMENT, Captured, CapturedGraph
from threadcast.capture.graph.dependencies import lies_in
from threadcast.capture.graph.lowering import lower
from threadcast.capture.graph.optimizers import SettingInputs
from threadcast.capture.graph.program import Input, Node, Phase
from threadcast.capture.graph.recorder import Recorder
from threadcast.capture.graph.training_step import Objective, TrainingStep, describe
from threadcast.capture.graph.values import find_refs
from threadcast.capture.guards.libraries import own_classes
from threadcast.capture.guards.module_values import ModuleValues
from threadcast.capture.guards.one_capture import one_capture
from threadcast.capture.guards.unsupported import check_function, check_supported
from threadcast.core.errors import CaptureError
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec
from threadcast.threads.memory import return_freed_memory


@one_capture()
def capture_forward(function: Callable[..., Any], *inputs: Any) -> Captured:
    """Capture `function(*inputs)` without gradients. A module is captured in the mode (train or eval) it is in.

    An input that comes twice, or is one of the module's own tensors, is so in every call: to the function it is one
    tensor. CaptureError says why a callable cannot be captured.
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
        captured = _capture(call, groups, inputs, recorder, settings=None)
    check_constants(captured, module.reached)
    return captured


@one_capture()
def capture_graph(
    graph: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    weights: Sequence[Tensor] | None = None,
    phase: Phase = "forward",
) -> CapturedGraph:
    """Capture a graph of operators below autograd that has no state, such as AOTAutograd's: all it reads are `inputs`.

    It must return a flat list or tuple. Of the inputs only the shapes are kept, so `bind` needs arguments. With
    `weights`, `graph(weights, *inputs)` is captured, and the captured graph holds weights and inputs. CaptureError
    says why the graph cannot be captured, as where it writes to an input.
    """
    recorder = Recorder(fixed_offsets=True)  # of views that AOTAutograd makes of memory which inputs share
    recorder.phase = phase

    def call(held: list[Tensor], arguments: tuple[Any, ...]) -> Any:
        with torch.no_grad():
            return graph(*arguments) if weights is None else graph(held, *arguments)

    examples = tuple(value.detach() if isinstance(value, Tensor) else value for value in inputs)
    group = {f"weight {i}": weight for i, weight in enumerate(weights or ())}
    captured = _capture(call, {"parameter": group}, examples, recorder, settings=None)
    if captured.written:
        raise CaptureError("cannot capture: a graph writes to an input of its own")
    shapes = tuple(value.to("meta") for value in captured.arguments)
    return CapturedGraph(
        captured.graph, captured.program, captured.held, shapes if weights is None else captured.arguments,
        apart=captured.apart, weights=len(group),
    )  # fmt: skip


def capture_training(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    optimizer: Optimizer,
    inputs: Sequence[Any],
    target: Any,
    *,
    gradients: bool = False,
) -> Captured:
    """Capture one step: `loss(model(*inputs), target)`, its gradients and the optimizer's update.

    A run returns {"loss": ..., "outputs": the model's}, with `gradients` also {"gradients": by parameter name}. The
    rest is as `capture_step` says.
    """

    def objective(model: nn.Module, inputs: tuple[Any, ...], target: Any) -> tuple[dict[str, Any], Tensor]:
        outputs = model(*inputs)
        value = loss(outputs, target)
        return {"loss": value, "outputs": outputs}, value

    data = tuple(inputs), target
    return capture_step(model, objective, optimizer, data, functions=(loss,), gradients=gradients)


@one_capture()
def capture_step(
    model: nn.Module,
    objective: Objective,
    optimizer: Optimizer,
    data: tuple[Any, ...],
    *,
    functions: Sequence[Callable[..., Any]] = (),
    gradients: bool = False,
    most_norm: float | None = None,
) -> Captured:
    """Capture one step: `objective(model, *data)`, the gradients of its second result, and the optimizer's update.

    A run returns the first result of `objective`, a dictionary. It adds to the `.grad` of parameters that require a
    gradient and are not the optimizer's: of all with `NoUpdate`. `functions` are those that `objective` calls.
    SGD, Adam and AdamW are known; their numbers (learning rates, momentum, betas, ...) are read at every run.
    With `most_norm` gradients are clipped before the update, as `torch.nn.utils.clip_grad_norm_` does it for all of the
    model's. What comes twice is one tensor, as for `capture_forward`. CaptureError says why a step cannot be captured;
    OptimizerRefused, which is one, that it is for the optimizer.
    """
    check_supported(model)
    for function in functions:
        check_function(function)
    recorder = Recorder()
    step = TrainingStep(model, objective, optimizer, recorder, gradients=gradients, most_norm=most_norm)
    with step.module.left_alone(model, *functions, *own_classes(data)) as recorder.caches:
        captured = _capture(step, step.groups, data, recorder, settings=step.settings)
        captured = replace(captured, others=step.others)
    check_constants(captured, step.module.reached, step.changing)
    step.keep_states()
    return captured


def _capture(
    function: Callable[..., Any],
    groups: Mapping[str, Mapping[str, Tensor]],
    arguments: tuple[Any, ...],
    recorder: Recorder,
    *,
    settings: SettingInputs | None,
) -> Captured:
    first = sum(map(len, groups.values()))
    given_groups = [list(group.values()) for group in groups.values()]
    recording = recorder.record(function, [*given_groups, arguments], own=first)
    inputs = [Input(role, name) for role, group in groups.items() for name in group]  # type: ignore[arg-type]
    held: dict[int, Any] = dict(enumerate(tensor for group in groups.values() for tensor in group.values()))
    leaves, paths = pytree.tree_leaves(arguments), []
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            held[len(inputs) + i] = leaf
        is_tensor = isinstance(leaf, Tensor)
        paths.append(Input("input", f"argument {i}") if is_tensor else Input("constant", f"{FIXED_ARGUMENT}{i}"))
    given = [*(tensor for group in groups.values() for tensor in group.values()), *leaves]
    lowered = lower(recording, [*inputs, *paths], given)
    if not lowered.program.nodes:
        raise CaptureError("cannot capture: nothing is computed")
    check_kernels(lowered.program.nodes, lowered.graph.ops)
    held.update(lowered.constants)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return_freed_memory()
    captured = Captured(
        lowered.graph, lowered.program, held, tensors, settings, reads=recorder.reads, apart=lowered.apart
    )  # fmt: skip
    if captured.reads is not None and captured.reads.of_any(captured.held.get(slot) for slot in captured.written):
        raise CaptureError("cannot capture: a number is read out of a tensor that each call writes to")
    return captured


def check_constants(captured: Captured, reached: Sequence[Tensor], changing: Iterable[Tensor] = ()) -> None:
    """CaptureError where a constant would be another tensor in later calls, though no value that is watched changes.

    That is the gradient of a tensor that the callable's code can reach, one of `reached`; one that shares memory with a
    tensor that a training step changes; and what a call makes itself past PyTorch's operators (`torch.frombuffer`),
    where a run writes to it or returns it.
    """
    program = captured.program
    constants = [slot for slot, entry in enumerate(program.inputs) if entry.role == "constant"]
    tensors = {slot: value for slot in constants if _has_storage(value := captured.held.get(slot))}
    memory = _storages(tensor for tensor in changing if tensor.numel())
    if same := [value for value in tensors.values() if _storage(value) in memory]:
        raise CaptureError(
            f"cannot capture: {describe(same[0])} shares memory with a parameter or buffer of the model, but is not "
            "read from the model"
        )
    gradients = _storages(tensor.grad for tensor in reached if tensor.is_leaf)
    if gradients and any(_storage(value) in gradients for value in tensors.values()):
        raise CaptureError("cannot capture: a gradient (`.grad`) is read, which may be another tensor in later calls")
    known = _storages(reached)
    made = {slot for slot, value in tensors.items() if _storage(value) not in known}
    outputs = find_refs(program.outputs) if made else ()
    returned = {slot for ref in outputs for slot in lies_in(program.nodes, program.inputs, ref)}
    if not made.isdisjoint({*captured.written, *returned}):
        raise CaptureError(
            "cannot capture: a tensor that the call makes past PyTorch's operators (torch.frombuffer) is "
            "written to or returned, and would be the same one in all calls"
        )


def _storages(values: Iterable[Any]) -> set[int]:
    return {_storage(value) for value in values if _has_storage(value)}


def _storage(tensor: Tensor) -> int:
    found: int = tensor.untyped_storage()._cdata
    return found


def _has_storage(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.layout is torch.strided


aten = torch.ops.aten

_FEW = 16
"""Input channels from which on the kernel was right: it was tried with 1 to 128 channels under glibc's MALLOC_CHECK_,
oneDNN of PyTorch 2.13 on a processor with AVX-512."""


def check_kernels(nodes: Sequence[Node], ops: Iterable[Op]) -> None:
    """CaptureError where a node calls a kernel that a plan cannot; `ops` describe the nodes' inputs.

    - oneDNN writes outside of its memory for the weight gradient of a convolution of single pixels with a stride, of
      few channels that are last in memory: the first layer of RepVGG in channels-last format ended the process.
    - A convolution of single pixels in three dimensions lays its result out otherwise on one thread than on several,
      where channels are last in memory (PyTorch 2.13): in a plan it would not lie as in eager PyTorch.
    """
    for node, op in zip(nodes, ops, strict=True):
        of_weight = node.target is aten.convolution_backward.default and node.args[-1][1]
        if not of_weight and node.target is not aten.convolution.default:
            continue
        image, weight = op.inputs[1:3] if of_weight else op.inputs[:2]
        single, last = set(weight.shape[2:]) == {1}, _has_channels_last(image) or _has_channels_last(weight)
        if not (single and last):
            continue
        if of_weight and not node.args[7] and max(node.args[4]) > 1 and weight.shape[1] < _FEW:
            raise CaptureError(
                "cannot capture: PyTorch's weight gradient of a convolution with a stride, single pixels and fewer "
                f"than {_FEW} channels last in memory writes outside of its memory"
            )
        if not of_weight and len(weight.shape) == 5 and set(node.args[3]) == {1}:
            raise CaptureError(
                "cannot capture: PyTorch's convolution of single pixels in three dimensions, with channels last in "
                "memory, orders its result by the number of threads"
            )


def _has_channels_last(spec: TensorSpec) -> bool:
    strides = spec.strides  # None: as contiguous
    return strides is not None and strides[1] == 1 and strides[-1] == spec.shape[1] > 1
