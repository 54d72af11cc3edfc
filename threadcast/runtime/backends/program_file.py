"""Writes a captured forward pass to a file for another process: operator names, arguments and tensors, and no code.

The file begins with the length of its JSON part, a big-endian integer of 8 bytes. The JSON part follows, then the
tensors, each at a multiple of 64 bytes. Nothing in it is executed when it is read but PyTorch's own operators by name.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import operator
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.dependencies import is_random, memories, writes
from threadcast.capture.graph.program import Node
from threadcast.capture.graph.values import AsNumber, Ref, decode, encode, find_refs
from threadcast.core.errors import CaptureError
from threadcast.runtime.plans.shared_memory import held_by, leave_out

_LENGTH_BYTES = 8
_ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector register."""
_BY_SHAPE = frozenset((
    "new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like",
))  # fmt: skip
"""Operators that read no number of their argument: it tells sizes and type."""
_NAMESPACE = "aten"
"""Operators that another process has too; a library's own operators may be missing there."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ProgramFile:
    """What `write` puts into a file: the JSON part, and the tensors' memory, with the places of both in it.

    `examples` are the numbers of the tensors that are no weights, but arguments.
    """

    head: bytes
    tensors: tuple[NDArray[np.uint8], ...]
    offsets: tuple[int, ...]
    examples: tuple[int, ...]

    def __post_init__(self) -> None:
        leave_out(self)

    @property
    def views(self) -> list[Tensor]:
        """The tensors that hold this memory."""
        return held_by(self.tensors)

    def weights_digest(self) -> str:
        """The SHA-256 of the weights; of 434 MB (BERT-base) in 0.3 s."""
        return _digest(one for number, one in enumerate(self.tensors) if number not in self.examples)

    def parts(self) -> Iterator[tuple[int, memoryview]]:
        """Yield what the file holds, as pairs of an offset in bytes and the content there."""
        yield 0, memoryview(len(self.head).to_bytes(_LENGTH_BYTES, "big") + self.head)
        for offset, content in zip(self.offsets, self.tensors, strict=True):
            if content.size:
                yield offset, memoryview(content)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False)
class ReadProgram:
    """A module that computes the captured forward pass from the tensors among its arguments, and their example."""

    module: fx.GraphModule
    example: tuple[Tensor, ...]

    def weights_digest(self) -> str:
        """The SHA-256 of the weights, as that of the file."""
        return _digest(map(_content, self.module.buffers()))


def program_file(captured: Captured) -> ProgramFile:
    """Return the file's content for a captured forward pass, whose tensors are not copied unless they have gaps.

    What `returned_arguments` and `unused_draws` find is not in it. CaptureError where a run writes to an input, returns
    a parameter, draws random numbers that something reads, or returns anything but tensors, and where an operator or a
    tensor has no form that another process can read.
    """
    program = captured.program
    returned = returned_arguments(captured)
    outputs = [output for at, output in enumerate(program.outputs) if at not in returned]
    left_to_caller = unused_draws(captured)
    _check(captured, outputs, left_to_caller)
    values = iter(captured.arguments)
    tensors: list[Tensor] = []
    numbers: dict[int, int] = {}
    for slot, entry in enumerate(program.inputs):
        value = next(values) if entry.role == "input" else captured.held[slot]
        if isinstance(value, Tensor):
            numbers[slot] = len(tensors)
            tensors.append(dense(value))
    offsets, described = [], []
    positions = {ref: i for i, ref in enumerate(dict.fromkeys(_refs(program.nodes, outputs)))}
    document: dict[str, Any] = {
        "inputs": [slot for slot, entry in enumerate(program.inputs) if entry.role == "input"],
        "held": [(slot, i) for slot, i in numbers.items() if program.inputs[slot].role != "input"],
        "first_slot": len(program.inputs),
        "refs": [list(ref) for ref in positions],
        "nodes": [
            None if at in left_to_caller else _described(node, positions) for at, node in enumerate(program.nodes)
        ],
        "outputs": [positions[output] for output in outputs],
        **dict(zip(("varying", "memory"), _followed(captured), strict=True)),
        "examples": [numbers[slot] for slot, entry in enumerate(program.inputs) if entry.role == "input"],
    }
    at = 0
    for tensor in tensors:
        offsets.append(at)
        described.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride()), at])
        at += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    head = json.dumps({**document, "tensors": described}).encode()
    begin = -(-(_LENGTH_BYTES + len(head)) // _ALIGNMENT) * _ALIGNMENT
    contents = list(map(_content, tensors))
    return ProgramFile(head, tuple(contents), tuple(begin + offset for offset in offsets), tuple(document["examples"]))


def dense(tensor: Tensor) -> Tensor:
    """The tensor below autograd, with its strides; a contiguous copy where its elements have gaps or overlap.

    CaptureError for a tensor whose values do not lie in this process's memory one by one.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise CaptureError(f"a tensor is {tensor.layout}, {tensor.device}, {tensor.dtype}, which backends do not read")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor if in_memory_order(tensor).is_contiguous() else tensor.contiguous()


def read_program(file: int) -> ReadProgram:
    """Read the program in the open file `file`. Its tensors share the file's memory; FormatError for another file."""
    content = mmap.mmap(file, os.fstat(file).st_size, access=mmap.ACCESS_COPY)
    length = int.from_bytes(content[:_LENGTH_BYTES], "big")
    document = json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length])
    begin = -(-(_LENGTH_BYTES + length) // _ALIGNMENT) * _ALIGNMENT
    tensors = [_tensor(content, begin, *described) for described in document["tensors"]]
    return ReadProgram(_module(document, tensors), tuple(tensors[i] for i in document["examples"]))


def returned_arguments(captured: Captured) -> dict[int, int]:
    """The positions of results that are arguments themselves, each with the argument's among the tensors of a call."""
    given = (slot for slot, entry in enumerate(captured.program.inputs) if entry.role == "input")
    numbers = {Ref(slot): number for number, slot in enumerate(given)}
    outputs = enumerate(captured.program.outputs)
    own = ((at, output) for at, output in outputs if isinstance(output, Ref) and at not in captured.apart)
    return {at: numbers[output] for at, output in own if output in numbers}


def unused_draws(captured: Captured) -> dict[int, Node]:
    """The operators, by their positions, that draw random numbers which nothing reads: a caller draws these itself.

    Transformers' encoders for speech draw such a number in each layer: in training it decides whether it is skipped.
    """
    program = captured.program
    read = {ref.slot for ref in _refs(program.nodes, program.outputs)}
    return {
        at: node
        for at, node in enumerate(program.nodes)
        if is_random(node)
        and len(program.inputs) + at not in read
        and not any(node.refs())
        and not any(isinstance(value, torch.Generator) for value in (*node.args, *node.kwargs.values()))
    }


def _described(node: Node, positions: dict[Ref, int]) -> list[Any]:
    keywords = {name: encode(value, positions) for name, value in node.kwargs.items()}
    return [*_name(node), encode(list(node.args), positions), keywords]


def _check(captured: Captured, outputs: Sequence[Any], left_to_caller: Collection[int]) -> None:
    program = captured.program
    if captured.written:
        raise CaptureError("the module writes to its buffers or arguments, which backends do not")
    drawing = (at for at, node in enumerate(program.nodes) if is_random(node) and not _drops_nothing(node))
    if any(at not in left_to_caller for at in drawing):
        raise CaptureError("the module draws random numbers, and backends draw others")
    if not all(isinstance(output, Ref) for output in outputs):
        raise CaptureError("the module returns something else than tensors")
    memory = memories(program.nodes, program.inputs)
    if any(memory[output.slot] < len(program.inputs) for output in outputs):
        raise CaptureError("the module returns a parameter or a view of an argument, of which backends make copies")


def _followed(captured: Captured) -> tuple[list[int], list[tuple[int, int]]]:
    """The slots of values that depend on arguments, and those of values that are written to, each with its memory."""
    program = captured.program
    first, memory = len(program.inputs), memories(program.nodes, program.inputs)
    written = {memory[ref.slot] for node in program.nodes for ref in writes(node)}
    place = [one if one in written else slot for slot, one in enumerate(memory)]
    dependent = {place[slot] for slot, entry in enumerate(program.inputs) if entry.role == "input"}
    varying = []
    for slot, node in enumerate(program.nodes, first):
        if _schema_name(node) not in _BY_SHAPE and any(place[ref.slot] in dependent for ref in node.refs()):
            varying.append(slot)
            dependent |= {place[slot], *(place[ref.slot] for ref in writes(node))}
    return varying, [(slot, one) for slot, one in enumerate(memory) if one in written]


def results_share_memory(captured: Captured) -> bool:
    """Return whether results of the program may share memory with one another."""
    program = captured.program
    memory = memories(program.nodes, program.inputs)
    fresh = {output for output in program.outputs if memory[output.slot] == output.slot}  # its items are apart
    views = set(program.outputs) - fresh
    roots = {output.slot for output in fresh} | {memory[output.slot] for output in views}
    return len(roots) < len({output.slot for output in fresh}) + len(views)


def _drops_nothing(node: Node) -> bool:
    """Whether the node is an attention without dropout, which draws no random numbers."""
    if node.target is not torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
        return False
    return not (node.args[3] if len(node.args) > 3 else node.kwargs.get("dropout_p", 0.0))


def _refs(nodes: tuple[Node, ...], outputs: Sequence[Any]) -> Iterator[Ref]:
    for node in nodes:
        yield from node.refs()
    yield from find_refs(outputs)


def _name(node: Node) -> list[str]:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != _NAMESPACE:
        raise CaptureError(f"another process cannot be relied on to have {target}")
    if any(isinstance(part, AsNumber) for part in (*node.args, *node.kwargs.values())):
        raise CaptureError(f"{target} takes a number that a tensor holds")
    return [_schema_name(node), target._overloadname]


def _schema_name(node: Node) -> str:
    """The name of a node's operator of `aten`; that of any other is not among these."""
    return str(node.target._schema.name).removeprefix(f"{_NAMESPACE}::") if isinstance(node.target, OpOverload) else ""


def _content(tensor: Tensor) -> NDArray[np.uint8]:
    return in_memory_order(tensor).reshape(-1).view(torch.uint8).numpy()


def _digest(contents: Iterable[NDArray[np.uint8]]) -> str:
    found = hashlib.sha256()
    for content in contents:
        found.update(content)  # type: ignore[arg-type]
    return found.hexdigest()


def in_memory_order(tensor: Tensor) -> Tensor:
    """A view with the dimensions ordered by stride, largest first: contiguous where the elements have no gaps."""
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda i: (-strides[i], -tensor.shape[i])))


def _tensor(
    content: mmap.mmap, begin: int, dtype_name: str, shape: list[int], strides: list[int], offset: int
) -> Tensor:
    dtype: torch.dtype = getattr(torch, dtype_name)
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=begin + offset).as_strided(shape, strides)


def _module(document: dict[str, Any], tensors: list[Tensor]) -> fx.GraphModule:
    graph, root = fx.Graph(), nn.Module()
    refs = [Ref(*ref) for ref in document["refs"]]
    values: list[Any] = [None] * len(refs)  # the graph's node for each of them
    numbers = defaultdict(list)
    for i, ref in enumerate(refs):
        numbers[ref.slot].append(i)

    varying, memory = set(document["varying"]), dict(document["memory"])

    def define(slot: int, node: fx.Node) -> None:
        meta = {"varying": slot in varying, **({"memory": memory[slot]} if slot in memory else {})}
        node.meta |= meta
        for i in numbers[slot]:
            item = refs[i].item
            values[i] = node if item is None else graph.call_function(operator.getitem, (node, item))
            values[i].meta |= meta

    for slot in document["inputs"]:
        define(slot, graph.placeholder(f"argument_{slot}"))
    for slot, number in document["held"]:
        root.register_buffer(f"held_{slot}", tensors[number])
        define(slot, graph.get_attr(f"held_{slot}"))
    for slot, described in enumerate(document["nodes"], document["first_slot"]):
        if described is None:
            continue
        name, overload, args, kwargs = described
        target = getattr(getattr(torch.ops.aten, name), overload)
        by_name = {name: decode(arg, values) for name, arg in kwargs.items()}
        define(slot, graph.call_function(target, tuple(decode(arg, values) for arg in args), by_name))
    graph.output(tuple(values[i] for i in document["outputs"]))
    return fx.GraphModule(root, graph)
