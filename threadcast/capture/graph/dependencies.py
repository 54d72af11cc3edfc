"""Ordering edges: which ops must keep their order although no value flows between them.

Two ops must keep it when one writes memory that the other reads or writes, under whatever name (views, in-place
results, parameters, running statistics), when both may draw random numbers, or when one may raise an exception and
the other writes what the caller holds: a call that fails leaves there what it leaves in PyTorch.

Sizes and types are checked when a call is captured. An index out of range, a singular matrix or a probability above 1
shows only when the operator runs (`may_raise`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from threadcast.capture.graph.program import Input, Node
from threadcast.capture.graph.values import Ref, find_refs
from threadcast.core.cost import VIEW_KINDS
from threadcast.core.graph import Edge

_MAY_RAISE = frozenset((
    "_assert_async", "_assert_scalar", "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only",
    "_functional_assert_async", "_functional_assert_scalar", "_grouped_mm", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "_index_put_impl", "_pack_padded_sequence", "_sample_dirichlet", "_standard_gamma",
    "_unsafe_index", "_unsafe_index_put", "bernoulli", "binary_cross_entropy", "bincount", "binomial", "cholesky",
    "cholesky_inverse", "ctc_loss", "embedding", "embedding_bag", "embedding_renorm",
    "fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask", "floor_divide", "fmod", "gather",
    "histc", "histogram", "index", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "index_select",
    "inverse", "lu_unpack", "masked_scatter", "max_unpool2d", "max_unpool3d", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_margin_loss_forward", "multinomial", "nll_loss", "nll_loss2d",
    "nll_loss2d_forward", "nll_loss_forward", "normal", "one_hot", "poisson", "put", "remainder", "repeat_interleave",
    "scatter", "scatter_add", "scatter_reduce", "searchsorted", "segment_reduce", "take",
))  # fmt: skip
_OURS = frozenset(("prims", "threadcast"))
"""Libraries whose operators compute each number by itself and look at no value: loops of fused operators are ours."""
_OURS_BY_INDEX = frozenset(("gather_add",))
"""Those of our operators that look at values all the same: at indices."""
_LINEAR_ALGEBRA = ("linalg_", "_linalg_")
_NEVER_RAISE = frozenset((
    "linalg_vector_norm", "linalg_cross", "linalg_diagonal", "bernoulli.float", "bernoulli.p", "normal.default",
    "normal.float_float",
))  # fmt: skip
"""Names of operators, or of those overloads that take a number where others take a tensor: it is checked at capture."""


def may_raise(node: Node) -> bool:
    """Whether the node's operator may raise because of values: those of PyTorch known for it, and any custom one.

    In a backward pass PyTorch's own operators use the indices that the forward pass has checked; those of a user's
    `autograd.Function` are recorded as of the forward pass.
    """
    if not isinstance(node.target, OpOverload):
        return False
    library, name = node.target._schema.name.split("::")
    if library != "aten":
        return library not in _OURS or (name in _OURS_BY_INDEX and node.phase == "forward")
    name = name if name.startswith("__") else name.rstrip("_")
    if {name, f"{name}.{node.target._overloadname}"} & _NEVER_RAISE:
        return False
    linear_algebra = name.startswith(_LINEAR_ALGEBRA)
    divides_integers = name == "div" and node.kwargs.get("rounding_mode") is not None
    return node.phase == "forward" and (name in _MAY_RAISE or linear_algebra or divides_integers)


UNDECLARED_WRITES = {"aten::native_batch_norm": ("running_mean", "running_var")}
"""Arguments that an operator writes in training although its schema does not say so."""
UNDECLARED_VIEWS = {"prims::device_put": "a"} | dict.fromkeys(
    ("aten::_unsafe_view", "aten::_reshape_alias", "aten::unsafe_split", "aten::unsafe_split_with_sizes",
     "aten::unsafe_chunk"), "self",
)  # fmt: skip
"""Arguments whose memory an operator returns although its schema does not say so."""
DECLARING = frozenset(("aten", "prims", "mkl", "mkldnn", "torchvision", "threadcast"))
"""Libraries of operators whose results share memory with arguments only where their schemas, or the two tables above,
say so. Those of custom operators must not either, but PyTorch only warns of those that do."""
RANDOM_STATE = -1
"""Represents the random generator among the memories that ops write."""


def edges(nodes: Sequence[Node], inputs: Sequence[Input]) -> tuple[Edge, ...]:
    """Data and ordering edges of a program; an ordering edge is left out where there is a data edge already."""
    n = len(inputs)
    data = {(ref.slot - n, i) for i, node in enumerate(nodes) for ref in node.refs() if ref.slot >= n}
    ordering = ordered(nodes, inputs) - data
    ordering |= _around_exceptions(nodes, inputs, data | ordering)
    return tuple(Edge(*pair) for pair in sorted(data)) + tuple(Edge(*pair, True) for pair in sorted(ordering))


def writes(node: Node) -> list[Ref]:
    """The values whose memory the node writes."""
    declared = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    if not declared and _schema_name(node) not in UNDECLARED_WRITES:
        return []  # at once: most nodes are so
    return [ref for name, value, written in _arguments(node) if written for ref in find_refs(value)]


def may_be_written(node: Node) -> list[Ref]:
    """What `writes` says; of a custom operator that declares no write and returns nothing all its arguments."""
    target = node.target
    if isinstance(target, OpOverload) and target.namespace not in DECLARING:
        schema = target._schema
        return list(node.refs()) if not (schema.is_mutable or schema.returns) else writes(node)
    return writes(node)


def is_random(node: Node) -> bool:
    """Whether the node draws from the random generator."""
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def may_draw(target: Any) -> bool:
    """Whether an operator draws from the random generator, or is a custom one: few of these say that they do."""
    if not isinstance(target, OpOverload):
        return False
    return torch.Tag.nondeterministic_seeded in target.tags or target.namespace not in DECLARING


def ordered(nodes: Sequence[Node], inputs: Sequence[Input]) -> set[tuple[int, int]]:
    """Pairs of nodes of which the second must wait for the first because of memory or random state."""
    memory = memories(nodes, inputs, undeclared=True)
    last_write: dict[int, int] = {}
    reads_since: dict[int, list[int]] = {}
    found: set[tuple[int, int]] = set()
    for index, node in enumerate(nodes):
        written = {memory[ref.slot] for ref in may_be_written(node)}
        written |= {RANDOM_STATE} if may_draw(node.target) else set()
        read = set() if _is_view(node) else {memory[ref.slot] for ref in node.refs()} - written
        for place in read:
            if place in last_write:
                found.add((last_write[place], index))
            reads_since.setdefault(place, []).append(index)
        for place in written:
            found.update((reader, index) for reader in reads_since.pop(place, []))
            if place in last_write:
                found.add((last_write[place], index))
            last_write[place] = index
    return found


def _around_exceptions(
    nodes: Sequence[Node], inputs: Sequence[Input], known: Collection[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Pairs that keep ops that may raise, and ops that write the memory of an input, in their order.

    Pairs that follow from the `known` ones, and from each other, are left out.
    """
    raising = [may_raise(node) for node in nodes]
    if not any(raising):
        return set()
    memory, n = memories(nodes, inputs), len(inputs)
    writing = [any(memory[ref.slot] < n for ref in writes(node)) for node in nodes]
    before: list[list[int]] = [[] for _ in nodes]
    for first, second in known:
        before[second].append(first)
    found: set[tuple[int, int]] = set()
    relevant: list[int] = []  # each op that raises or writes has one bit in `reached`
    raises = held = 0  # the bits of those up to here
    reached = [0] * len(nodes)
    for i in range(len(nodes)):
        for first in before[i]:
            reached[i] |= reached[first]
        missing = ((raises if writing[i] else 0) | (held if raising[i] else 0)) & ~reached[i]
        while missing:
            first = relevant[missing.bit_length() - 1]
            found.add((first, i))
            reached[i] |= reached[first]
            missing &= ~reached[i]
        if raising[i] or writing[i]:
            bit = 1 << len(relevant)
            relevant.append(i)
            reached[i] |= bit
            raises |= bit if raising[i] else 0
            held |= bit if writing[i] else 0
    return found


def memories(nodes: Sequence[Node], inputs: Sequence[Input], *, undeclared: bool = False) -> list[int]:
    """For every slot the lowest slot whose memory it may share.

    `undeclared`: those of custom operators may share what `may_be_returned` says.
    """
    n_inputs = len(inputs)
    numbers = {slot for slot, entry in enumerate(inputs) if entry.role == "setting"}
    memory = list(range(n_inputs + len(nodes)))
    for slot, entry in enumerate(inputs):
        if entry.shares is not None:
            memory[slot] = entry.shares

    def lowest(slot: int) -> int:
        while memory[slot] != slot:
            slot = memory[slot]
        return slot

    for index, node in enumerate(nodes):
        shared = may_be_returned(node) if undeclared else returned(node)
        together = {lowest(ref.slot) for ref in shared if ref.slot not in numbers} | {n_inputs + index}
        for slot in together:
            memory[slot] = min(together)
    return [lowest(slot) for slot in memory]


def lies_in(nodes: Sequence[Node], inputs: Sequence[Input], ref: Ref) -> list[int]:
    """The slots of the values in whose memory a value may lie: its own, and those of what it is a view of.

    An input that shares memory with an earlier one lies in that too.
    """
    n, found = len(inputs), [ref.slot]
    for slot in found:
        if slot >= n:
            found.extend(other.slot for other in returned(nodes[slot - n]))
        elif (shared := inputs[slot].shares) is not None:
            found.append(shared)
    return found


def _is_view(node: Node) -> bool:
    """Whether the node only describes memory."""
    return _schema_name(node).removeprefix("aten::") in VIEW_KINDS


def _schema_name(node: Node) -> str:
    return node.target._schema.name if isinstance(node.target, OpOverload) else ""


def _arguments(node: Node) -> Iterable[tuple[str, Any, bool]]:
    """(name, value, whether the operator writes it) of each given argument."""
    if not isinstance(node.target, OpOverload):
        return
    values = {
        argument.name: node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        for position, argument in enumerate(node.target._schema.arguments)
    }
    undeclared = UNDECLARED_WRITES.get(_schema_name(node), ()) if values.get("training", True) else ()
    for argument, value in zip(node.target._schema.arguments, values.values(), strict=True):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        yield argument.name, value, declared or argument.name in undeclared


def returned(node: Node) -> list[Ref]:
    """Values whose memory the node's result may share."""
    shared: list[Ref] = []
    for position, name in _returned_by(node.target) if isinstance(node.target, OpOverload) else ():
        shared += find_refs(node.args[position] if position < len(node.args) else node.kwargs.get(name))
    return shared


@cache
def _returned_by(target: OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments whose memory a result of this operator may share."""
    schema = target._schema
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    aliased = {name for info in aliases for name in info.before_set}

    def shares(argument: Any) -> bool:
        # "Tensor(a -> *)" stands for what is returned in a list: split, chunk, unbind.
        given = argument.alias_info
        declared = given is not None and bool(given.before_set & aliased or (aliases and "*" in given.after_set))
        return declared or UNDECLARED_VIEWS.get(schema.name) == argument.name

    return tuple((i, argument.name) for i, argument in enumerate(schema.arguments) if shares(argument))


def may_be_returned(node: Node) -> list[Ref]:
    """What `returned` says, and of a custom operator with results all its arguments, whatever its schema says."""
    if isinstance(node.target, OpOverload) and node.target.namespace not in DECLARING and node.target._schema.returns:
        return list(node.refs())
    return returned(node)


def returns_written(node: Node, item: int) -> Ref | None:
    """The tensor that the node writes to and returns as its result number `item`; None where that is another one."""
    if not isinstance(node.target, OpOverload):
        return None
    results = node.target._schema.returns
    info = results[item].alias_info if item < len(results) else None
    if info is None or not info.is_write:
        return None
    for argument, (_, value, _) in zip(node.target._schema.arguments, _arguments(node)):
        given = argument.alias_info
        if given is not None and given.before_set & info.before_set and isinstance(value, Ref):
            return value
    return None
