"""From a traced graph to ops and a program: names, costs, splitting, and leaving out what nobody needs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from threadcast.collector.argument_json import encode
from threadcast.collector.dependencies import edges, is_random, writes
from threadcast.collector.program import Input, Node, Phase, Program
from threadcast.collector.simplify import Simplifier
from threadcast.collector.splitting import Part, split_call
from threadcast.collector.values import Ref, find_refs, map_refs
from threadcast.core.errors import CaptureError
from threadcast.core.graph import OpGraph
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec

aten = torch.ops.aten

TRANSPARENT = {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default}
"""Operators that return their argument; below autograd they mean nothing and are left out."""

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
"""The field's names where PyTorch's operators are called otherwise; all others keep PyTorch's."""


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A graph and its program; `constants` are tensors that the callable had closed over, by input slot."""

    graph: OpGraph
    program: Program
    constants: Mapping[int, Tensor]


@dataclass(slots=True)
class _Call:
    """A node on its way: the operator call, its id, and the fake tensors that it returns."""

    name: str
    part: Part
    phase: Phase
    result: Any


def lower(
    module: fx.GraphModule,
    inputs: Sequence[Input],
    values: Sequence[Any],
    structure: pytree.TreeSpec,
    *,
    split: bool,
    phase_starts: Mapping[Phase, int],
) -> Lowered:
    """Turn a module traced by make_fx into an op graph and its program.

    `inputs` name the placeholders in order, `values` are what they stood for. The module returns a flat list,
    `structure` says of what. `split` separates the gradients that one operator computes. `phase_starts` are positions
    of traced nodes.
    """
    builder = _Builder(module, list(inputs), values, split)
    phase: Phase = "forward"
    for position, node in enumerate(module.graph.nodes):
        phase = next((name for name, start in phase_starts.items() if start == position), phase)
        builder.visit(node, phase)
    return builder.finish(structure)


class _Builder:
    def __init__(self, module: fx.GraphModule, inputs: list[Input], given: Sequence[Any], split: bool) -> None:
        self.module, self.inputs, self.split = module, inputs, split
        self.constants: dict[int, Tensor] = {}
        self.values: dict[str, Any] = {}  # traced node's name -> Ref, or {item: Ref} for a split call's members
        self.specs: dict[Ref, Any] = {}  # Ref -> the fake tensor it stands for
        self.calls: list[_Call] = []
        self.outputs: Any = None
        attributes = [node for node in module.graph.nodes if node.op == "get_attr"]
        for node in attributes:
            slot = len(self.inputs)
            self.inputs.append(Input("constant", str(node.target)))
            self.constants[slot] = self._attribute(str(node.target))
            self._define(node, Ref(slot), self.constants[slot])
        self.inputs = _sharing(self.inputs, [*given, *self.constants.values()])
        self.n_inputs = len(self.inputs)
        self.placeholders = 0

    def visit(self, node: fx.Node, phase: Phase) -> None:
        if node.op == "placeholder":
            self._define(node, Ref(self.placeholders), node.meta.get("val"))
            self.placeholders += 1
        elif node.op == "call_function":
            self._call(node, phase)
        elif node.op == "output":
            self.outputs = self._resolve(node.args[0])
        elif node.op != "get_attr":
            raise CaptureError(f"cannot capture a {node.op} of {node.target}")

    def _call(self, node: fx.Node, phase: Phase) -> None:
        if node.target is operator.getitem:
            self._member(node)
            return
        if node.target in TRANSPARENT:
            self.values[node.name] = self._resolve(node.args[0])
            return
        if not callable(node.target):
            raise CaptureError(f"cannot capture a call of {node.target!r}")
        args, kwargs = tuple(self._resolve(a) for a in node.args), {k: self._resolve(v) for k, v in node.kwargs.items()}
        parts = split_call(node.target, args, kwargs) if self.split else []
        result: Any = node.meta.get("val")
        if not parts:
            slot = self._append(_Call(node.name, Part(node.target, args, kwargs), phase, result))
            self._define(node, Ref(slot), result)
            return
        members: dict[int, Ref] = {}
        for part in parts:
            kept = [value if i in part.members else None for i, value in enumerate(result)]
            returned = kept if part.single is None else kept[part.single]
            slot = self._append(_Call(f"{node.name}.{part.suffix}", part, phase, returned))
            for item in part.members:
                members[item] = Ref(slot, item if part.single is None else None)
                self.specs[members[item]] = result[item]
        self.values[node.name] = members

    def _member(self, node: fx.Node) -> None:
        """One result of an operator that returns several; None where a mask told it to leave that one out."""
        source, item = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(item, int)
        known = self.values[source.name]
        value = known.get(item) if isinstance(known, dict) else Ref(known.slot, item)
        self.values[node.name] = value
        if value is not None:
            self.specs.setdefault(value, node.meta.get("val"))

    def _append(self, call: _Call) -> int:
        self.calls.append(call)
        return self.n_inputs + len(self.calls) - 1

    def _define(self, node: fx.Node, ref: Ref, value: Any) -> None:
        self.values[node.name] = ref
        self.specs[ref] = value

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument.name]
        if isinstance(argument, list | tuple):
            return [self._resolve(part) for part in argument]
        if isinstance(argument, dict):
            return {key: self._resolve(part) for key, part in argument.items()}
        return argument

    def _attribute(self, path: str) -> Tensor:
        value: Any = self.module
        for name in path.split("."):
            value = getattr(value, name)
        if not isinstance(value, Tensor):
            raise CaptureError(f"cannot capture the attribute {path} of type {type(value).__name__}")
        return value

    def finish(self, structure: pytree.TreeSpec) -> Lowered:
        simpler = Simplifier([c.part for c in self.calls], [c.result for c in self.calls], self.inputs, self.outputs)
        simpler.run()
        self.outputs = simpler.outputs
        for call, part in zip(self.calls, simpler.parts, strict=True):
            call.part = part
        nodes = [Node(c.part.target, c.part.args, c.part.kwargs, c.phase) for c in self.calls]
        keep = _needed(nodes, self.n_inputs, self.outputs)
        slots = {slot: slot for slot in range(self.n_inputs)}
        slots.update({self.n_inputs + old: self.n_inputs + new for new, old in enumerate(keep)})

        def renumber(ref: Ref) -> Ref:
            return Ref(slots[ref.slot], ref.item)

        renumbered = tuple(
            Node(n.target, map_refs(renumber, n.args), map_refs(renumber, n.kwargs), n.phase)
            for n in (nodes[i] for i in keep)
        )
        distinct: dict[str, Op] = {}
        made = (self._op(self.calls[i]) for i in keep)
        ops = tuple(distinct.setdefault(op.key, op) for op in made)
        outputs = pytree.tree_unflatten(map_refs(renumber, self.outputs), structure)
        program = Program(tuple(self.inputs), renumbered, outputs)
        graph = OpGraph(tuple(self.calls[i].name for i in keep), ops, edges(renumbered, self.inputs))
        return Lowered(graph, program, self.constants)

    def _op(self, call: _Call) -> Op:
        refs = list(dict.fromkeys(find_refs((call.part.args, call.part.kwargs))))
        positions = {ref: i for i, ref in enumerate(refs)}
        arguments = {
            "target": str(call.part.target),
            "args": [encode(arg, positions) for arg in call.part.args],
            "kwargs": {name: encode(value, positions) for name, value in sorted(call.part.kwargs.items())},
        }
        inputs = tuple(_spec(self.specs[ref], call.name) for ref in refs)
        results = call.result if isinstance(call.result, list | tuple) else [call.result]
        outputs = tuple(_spec(value, call.name) for value in results if isinstance(value, Tensor))
        return Op(call.part.kind or kind_of(call.part.target, call.part.args), inputs, arguments, outputs)


def _sharing(inputs: Sequence[Input], values: Sequence[Any]) -> list[Input]:
    """The inputs, each with the first whose memory it shares, by their values."""
    first: dict[int, int] = {}
    found = []
    for slot, (entry, value) in enumerate(zip(inputs, values, strict=True)):
        storage = value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0
        shares = first.setdefault(storage, slot) if storage else slot  # empty tensors have no memory
        found.append(entry if shares == slot else replace(entry, shares=shares))
    return found


def kind_of(target: Callable[..., Any], args: Sequence[Any]) -> str:
    """The field's name of what an operator call does."""
    if target is aten.convolution.default:
        return "convolution_transposed" if args[6] else "convolution"
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    name = target._schema.name.split("::")[-1]
    return KINDS.get(name, name)


def _needed(nodes: Sequence[Node], n_inputs: int, outputs: Any) -> list[int]:
    """Nodes that the outputs need, that write memory or that draw random numbers, and what these need."""
    needed = {ref.slot - n_inputs for ref in find_refs(outputs)}
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if index in needed or is_random(node) or writes(node):
            needed.add(index)
            needed.update(ref.slot - n_inputs for ref in node.refs())
    return sorted(index for index in needed if index >= 0)


def _spec(value: Any, name: str) -> TensorSpec:
    if not isinstance(value, Tensor):
        raise CaptureError(f"op {name} takes a value of type {type(value).__name__} that is no tensor")
    sides = (*value.shape, *value.stride())
    if any(isinstance(side, torch.SymInt) for side in sides):
        raise CaptureError(f"cannot capture: the shape of {name} depends on tensor values (masks, nonzero, unique)")
    return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."), tuple(value.stride()))
