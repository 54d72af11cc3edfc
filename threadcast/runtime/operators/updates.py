"""Has the updates of small parameters run together: each alone takes 2 to 4 us to begin, and less to compute.

Parameters whose updates come one after the other, as those of a layer, are updated by one call of the same kernel, and
their steps counted by one operator of our own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import memories
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.op import Op
from threadcast.core.tensor import TensorSpec
from threadcast.runtime.engine.native.library import has_engine, native_library
from threadcast.runtime.operators.clusters import specs_of
from threadcast.runtime.operators.replacing import Block, rebuilt

aten = torch.ops.aten

TOGETHER, COUNT = "updates_together", "count"
"""Kinds of the operators in graphs."""
SMALL, MOST, PARAMETERS = 1 << 13, 1 << 15, 16
"""Most numbers of a parameter, and of the parameters of one update, and most parameters there: an update of as much
takes about 20 us, by which the end of a step on several cores may wait."""
_KERNELS = {aten._fused_sgd_.default, aten._fused_adam_.default, aten._fused_adamw_.default}


def with_updates_together(captured: Captured) -> Captured:
    """Return `captured` with the updates of small parameters together; `captured` itself where there are no two."""
    if captured.sizes is not None or not any(node.target in _KERNELS for node in captured.program.nodes):
        return captured
    found = [group for kind in _kinds(captured) for group in _groups(captured, kind)]
    return rebuilt(captured, list(_blocks(captured, found))) if found and has_engine() else captured


def _kinds(captured: Captured) -> Iterable[list[int]]:
    """The updates of small parameters, those that differ in nothing but their tensors together."""
    program = captured.program
    uses = Counter(ref for node in program.nodes for ref in node.refs())
    kinds: defaultdict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(program.nodes):
        if node.phase != "update" or node.target not in _KERNELS or captured.graph.ops[i].inputs[0].numel > SMALL:
            continue
        lists, others = _split(node)
        known = all(_counts(captured, j) and uses[step] == 1 for step, j in _count(captured, i))
        if max(map(len, lists)) > 1 or not known:
            continue
        dtype, lengths = captured.graph.ops[i].inputs[0].dtype, [len(one) for one in lists]
        kinds[repr((node.target, dtype, lengths, others, node.kwargs))].append(i)
    return kinds.values()


def _groups(captured: Captured, alike: list[int]) -> Iterator[list[int]]:
    """Those of these updates that can be made together where the last of them is."""
    program, graph = captured.program, captured.graph
    memory = memories(program.nodes, program.inputs)
    groups: list[list[int]] = [[]]
    sizes = 0
    for i in alike:
        sizes += graph.ops[i].inputs[0].numel
        if len(groups[-1]) == PARAMETERS or sizes > MOST:
            groups.append([])
            sizes = graph.ops[i].inputs[0].numel
        groups[-1].append(i)
    for group in groups:
        counts = [j for i in group for _, j in _count(captured, i)]
        tensors = [one for i in group for one in (program.nodes[i].args[0], *program.nodes[i].args[2:])]
        written = [memory[ref.slot] for ref in find_refs(tensors)]  # gradients are only said to be
        later = {j for i in (*group, *counts) for j in graph.successors[i]}.difference(group, counts)
        if len(group) > 1 and len(set(written)) == len(written) and all(j > group[-1] for j in later):
            yield group


def _count(captured: Captured, i: int) -> list[tuple[Ref, int]]:
    """The step that an update takes, and the node that counts it; empty where it takes none."""
    steps = captured.program.nodes[i].args[5:6]
    return [(ref, ref.slot - len(captured.program.inputs)) for ref in find_refs(steps)]


def _counts(captured: Captured, j: int) -> bool:
    """Whether a node adds 1 to a float32."""
    if j < 0 or captured.graph.ops[j].inputs[0] != TensorSpec((), "float32"):
        return False
    node = captured.program.nodes[j]
    return node.target is aten.add_.Tensor and node.args[1:] == (1,) and not node.kwargs


def _split(node: Node) -> tuple[list[list[Ref]], tuple[Any, ...]]:
    """The lists of tensors that an update takes, and its other arguments."""
    lists = [arg for arg in node.args if isinstance(arg, list)]
    return lists, node.args[len(lists) :]


def _blocks(captured: Captured, groups: Sequence[Sequence[int]]) -> Iterator[Block]:
    program, graph, specs = captured.program, captured.graph, specs_of(captured)
    last = {group[-1]: group for group in groups}
    counted = {j for group in groups for i in group for _, j in _count(captured, i)}
    left_out = counted.union(*groups)
    further = len(program.inputs) + len(program.nodes)

    def made(slot: int, node: Node, kind: str, i: int, number: int) -> Block:
        inputs = tuple(specs[ref] for ref in dict.fromkeys(node.refs()))
        return Block(slot, node, f"{graph.ids[i]}.{kind}", Op(kind, inputs, {"tensors": number}, ()))

    for i, node in enumerate(program.nodes):
        if i in last:
            group, counts = last[i], [j for k in last[i] for _, j in _count(captured, k)]
            first = {program.slot_of(j): program.nodes[j].args[0] for j in counts}
            if counts:
                steps = [first[program.slot_of(j)] for j in counts]
                yield made(further, Node(_counting(), (steps,), {}, node.phase), COUNT, i, len(steps))
                further += 1
            lists = [_split(program.nodes[k])[0] for k in group]
            joined = [
                [first.get(one.slot, one) for part in parts for one in part] for parts in zip(*lists, strict=True)
            ]
            together = Node(node.target, (*joined, *_split(node)[1]), node.kwargs, node.phase)
            yield made(program.slot_of(i), together, TOGETHER, i, len(group))
        elif i not in left_out:
            yield Block(program.slot_of(i), node, graph.ids[i], graph.ops[i])


@cache
def _counting() -> OpOverload:
    """`threadcast::count_`."""
    native_library().define_counts()
    return torch.ops.threadcast.count_.default
