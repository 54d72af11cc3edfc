"""From recorded calls to ops and a program: names, costs, splitting, and removal of calls that nothing needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from threadcast.capture.graph.dependencies import edges, lies_in, may_draw, may_raise, returns_written, writes
from threadcast.capture.graph.program import Call, Input, Node, Program, Recording
from threadcast.capture.graph.rewriting import Simplifier, items, parts_of
from threadcast.capture.graph.values import Ref, encode, find_refs, map_refs
from threadcast.core.graph import OpGraph
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

_SCALAR = TensorSpec(())

KINDS = {
    "addmm_": "addmm",
    "native_batch_norm": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_no_training": "batch_norm_inference",
    "native_batch_norm_backward": "batch_norm_backward",
    "native_layer_norm": "layer_norm",
    "_log_softmax": "log_softmax",
    "_softmax": "softmax",
    "_log_softmax_backward_data": "log_softmax_backward",
    "_softmax_backward_data": "softmax_backward",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "scaled_dot_product_attention_backward",
    "_fused_sgd_": "sgd_update",
    "_fused_adam_": "adam_update",
    "_fused_adamw_": "adamw_update",
}
"""The field's names for operators that PyTorch names differently; all others keep PyTorch's name."""


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A graph and its program; `constants` are the tensors in the callable's closure, by input slot.

    `apart` are the positions of outputs to be detached from what they are in a run (`_apart`).
    """

    graph: OpGraph
    program: Program
    constants: Mapping[int, Tensor]
    apart: tuple[int, ...]


def lower(recording: Recording, inputs: Sequence[Input], values: Sequence[Any]) -> Lowered:
    """Turn recorded calls into an op graph and its program, without calls that nothing needs.

    `inputs` name the arguments in order, `values` are the objects that they represent.
    """
    n, recorded = len(inputs) + len(recording.constants), [*range(len(inputs)), *recording.constants]
    constants = dict(enumerate(recording.constants.values(), len(inputs)))
    names = [*inputs, *(Input("constant", f"constant {i}") for i in range(len(constants)))]
    shared = _sharing(names, [*values, *constants.values()])
    specs = {Ref(slot): spec for slot, own in enumerate(recorded) if (spec := recording.specs.get(Ref(own)))}
    meant: dict[Ref, Ref | None] = {Ref(own): Ref(slot) for slot, own in enumerate(recorded)}
    """For each ref of the recording the ref in the program; None for a result that a mask leaves out."""
    calls: list[Call] = []
    for call in recording.calls:
        args, kwargs = map_refs(meant.__getitem__, call.args), map_refs(meant.__getitem__, call.kwargs)
        first = next((specs[arg] for arg in args if isinstance(arg, Ref) and arg in specs), _SCALAR)
        parts, held = parts_of(replace(call, args=args, kwargs=kwargs), first, n + len(calls))
        for slot, part in enumerate(parts, n + len(calls)):
            specs.update((Ref(slot, item), spec) for item, spec in items(part.result) if spec is not None)
        calls += parts
        meant.update((Ref(call.number, item), held.get(item)) for item, _ in items(call.result))
    simpler = Simplifier(calls, shared, map_refs(meant.__getitem__, recording.outputs))
    simpler.run()
    keep = _needed(simpler.calls, n, simpler.outputs)
    slots = {slot: slot for slot in range(n)} | {n + old: n + new for new, old in enumerate(keep)}

    def renumber(ref: Ref) -> Ref:
        return Ref(slots[ref.slot], ref.item)

    calls = [simpler.calls[i] for i in keep]
    nodes = tuple(
        Node(one.target, map_refs(renumber, one.args), map_refs(renumber, one.kwargs), one.phase) for one in calls
    )
    program = Program(tuple(shared), nodes, tuple(map_refs(renumber, simpler.outputs)), recording.structure)
    distinct: dict[str, Op] = {}
    ops = tuple(distinct.setdefault(op.key, op) for op in (_op(call, specs) for call in calls))
    graph = OpGraph(tuple(call.name for call in calls), ops, edges(nodes, shared))
    given = {slot: recording.given[own] for slot, own in enumerate(recorded) if own in recording.given}
    return Lowered(graph, program, constants, _apart(program, recording, given))


def _op(call: Call, specs: Mapping[Ref, TensorSpec]) -> Op:
    refs = list(dict.fromkeys(call.refs()))
    positions = {ref: i for i, ref in enumerate(refs)}
    arguments = {
        "target": str(call.target),
        "args": [encode(arg, positions) for arg in call.args],
        "kwargs": {name: encode(value, positions) for name, value in sorted(call.kwargs.items())},
    }
    inputs = tuple(specs[ref] for ref in refs)
    outputs = tuple(spec for _, spec in items(call.result) if spec is not None)
    return Op(call.kind or kind_of(call.target, call.args), inputs, arguments, outputs)


def _apart(program: Program, recording: Recording, given: Mapping[int, int]) -> tuple[int, ...]:
    """Positions of outputs that are tensors of their own, or require no gradient, where those of a run would not be so,
    as `detach` is left out.

    `given` identifies the inputs by slot, as the recording does.
    """
    first: dict[Ref, int | None] = {Ref(slot): tensor for slot, tensor in given.items()}
    found = []
    for position, (output, tensor) in enumerate(zip(program.outputs, recording.returned, strict=True)):
        if not isinstance(output, Ref):
            continue
        ref = _written_to(program, output)
        may_require = position in recording.detached and _is_view_of_parameter(program, ref)
        if first.setdefault(ref, tensor) != tensor or may_require:
            found.append(position)
    return tuple(found)


def _is_view_of_parameter(program: Program, ref: Ref) -> bool:
    """Whether a value may be a view of an input that requires a gradient, but not the input itself."""
    n = len(program.inputs)
    slots = lies_in(program.nodes, program.inputs, ref) if ref.slot >= n else ()
    return any(slot < n and program.inputs[slot].role in ("parameter", "constant") for slot in slots)


def _written_to(program: Program, ref: Ref) -> Ref:
    """The value that a value is once more, after operators that write to a tensor and return it."""
    while ref.slot >= len(program.inputs):
        before = returns_written(program.nodes[ref.slot - len(program.inputs)], ref.item or 0)
        if before is None:
            break
        ref = before
    return ref


def _sharing(inputs: Sequence[Input], values: Sequence[Any]) -> list[Input]:
    """The inputs, each with the first input whose memory it shares, found from their values.

    Storages may overlap, as those of slices of one NumPy array, which have one each.
    """
    spans = []
    for slot, value in enumerate(values):
        if isinstance(value, Tensor) and (begin := (storage := value.untyped_storage()).data_ptr()):
            spans.append((begin, begin + max(storage.nbytes(), 1), slot))  # empty tensors have no memory
    together: list[list[int]] = []
    reached = 0
    for begin, end, slot in sorted(spans):
        if begin < reached:
            together[-1].append(slot)
        else:
            together.append([slot])
        reached = max(reached, end)
    shares = {slot: min(slots) for slots in together for slot in slots}
    return [
        entry if (first := shares.get(slot, slot)) == slot else replace(entry, shares=first)
        for slot, entry in enumerate(inputs)
    ]


def kind_of(target: Callable[..., Any], args: Sequence[Any]) -> str:
    """The field's name for what an operator call computes."""
    if target is aten.convolution.default:
        return "convolution_transposed" if args[6] else "convolution"
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    name = target._schema.name.split("::")[-1]
    return KINDS.get(name, name)


def _needed(nodes: Sequence[Node], n_inputs: int, outputs: Any) -> list[int]:
    """Positions of the nodes that must stay, ascending.

    These are the nodes that the outputs need, that write memory, may draw random numbers or check something, as whether
    indices are in range, and those that these need.
    """
    needed = {ref.slot - n_inputs for ref in find_refs(outputs)}
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if index in needed or may_draw(node.target) or writes(node) or _checks(node):
            needed.add(index)
            needed.update(ref.slot - n_inputs for ref in node.refs())
    return sorted(index for index in needed if index >= 0)


def _checks(node: Node) -> bool:
    """Whether the node is needed for what it does or raises, and not for a result."""
    returns = isinstance(node.target, OpOverload) and node.target._schema.returns
    return not returns or node.target is aten._linalg_check_errors.default or may_raise(node)
