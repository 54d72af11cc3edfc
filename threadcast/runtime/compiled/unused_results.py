"""Gradients that eager PyTorch leaves out because no loss used the results that lead to them.

AOTAutograd takes zeros for the gradient of an unused result, and gives gradients of zeros for what only it depends on.
An optimizer takes a step by these, of momentum and weight decay, where it leaves alone what has no gradient. What also
depends on other results would be zeros too, but for zeros that are multiplied by what is infinite, as the derivative of
a square root at 0. So the gradients of unused results are undefined, and the backward graph runs without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import torch
from torch import SymInt, Tensor
from torch._dynamo import compiled_autograd
from torch._functorch.autograd_function import autograd_function_apply
from torch.fx import Graph, GraphModule, Node

from threadcast.capture.guards.unsupported import may_exchange

aten = torch.ops.aten
_MAKING = {"ones_like", "full_like", "new_ones", "new_full", "empty_like", "new_empty", "new_empty_strided"}
"""Operators whose results have numbers that do not depend on those of their argument."""
_NODE = "CompiledFunctionBackward"
"""The name of the class of AOTAutograd's nodes in autograd's graph."""
_FAR = 3
"""Most nodes of views between a result and AOTAutograd's node. A convention."""

_MOST = 8
"""Most sets of unused results for which there are graphs of their own. A convention."""


class UnusedResults:
    """Which gradients of a backward graph depend on which results, some of which may be unused.

    `given` are, by position among the graph's inputs, the gradients of results as they were traced. `needs` are for
    each gradient that the graph returns the positions of those that it depends on.
    """

    def __init__(self, given: dict[int, Tensor], needs: Sequence[frozenset[int]]) -> None:
        self._given, self._needs = given, needs
        self.keep_graphs: Callable[[], None] | None = None
        """Lets the graph run in all steps, and not eager PyTorch by turns."""
        self.varies = any(isinstance(side, SymInt) for one in given.values() for side in (*one.shape, *one.stride()))
        """Whether sizes vary: it is then not known how large zeros in the place of these gradients are."""

    @classmethod
    def of(cls, backward: GraphModule) -> Self | None:
        """Return those of a graph; None where all gradients depend on all results."""
        inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
        given = {i: node.meta["val"] for i, node in enumerate(inputs) if _is_gradient(node)}
        if len(given) < 2:
            return None
        numbers = {node: i for i, node in enumerate(inputs)}
        needs: dict[Node, frozenset[int]] = {}
        for node in backward.graph.nodes:
            own = frozenset({numbers[node]}) if numbers.get(node) in given else frozenset[int]()
            needs[node] = own.union(*map(needs.__getitem__, node.all_input_nodes))
        (output,) = (node for node in backward.graph.nodes if node.op == "output")
        found = tuple(needs[one] if isinstance(one, Node) else frozenset[int]() for one in output.args[0])
        if all(not one or len(one) == len(given) for one in found):
            return None
        return cls(given, found)

    @property
    def gradients(self) -> frozenset[int]:
        """The positions of the gradients of results among the graph's inputs."""
        return frozenset(self._given)

    def meets_autograd(self, arguments: Sequence[Any]) -> bool:
        """Whether autograd would meet a gradient of None beyond the graph, in a hook or in a node before an argument.

        These are called for each gradient of a graph's arguments. Some take None for zeros, and raise or train by it;
        eager PyTorch does not come to them where no loss used what the argument leads to.
        """
        in_order = len(self._needs) == len(arguments)  # else AOTAutograd has put arguments together
        some = [0 < len(one) < len(self._given) for one in self._needs] if in_order else [True] * len(arguments)
        return any(
            one.grad_fn is not None or one._backward_hooks or one._post_accumulate_grad_hooks
            for one, depends in zip(arguments, some, strict=True)
            if depends and isinstance(one, Tensor) and one.requires_grad
        )

    def left_out(
        self, run: Callable[..., Any], without: Callable[[frozenset[int]], Callable[..., Any] | None]
    ) -> Callable[..., Any]:
        """Return `run`, which runs the graph, for inputs that are None where a result was unused.

        So are then the gradients that depend on unused results alone. `without` returns what runs the graph without
        these inputs; where it returns None, the graph gets zeros.
        """
        others: dict[frozenset[int], Callable[..., Any] | None] = {}

        def called(*arguments: Any) -> Any:
            unused = frozenset(i for i in self._given if arguments[i] is None)
            if not unused:
                return run(*arguments)
            exchanges = may_exchange()  # DistributedDataParallel counts on the same gradients in each step: zeros, then
            if not exchanges and unused not in others and len(others) < _MOST:
                others[unused] = without(unused)
            if not exchanges and (other := others.get(unused)) is not None:
                return other(*[value for i, value in enumerate(arguments) if i not in unused])
            found = run(*[_zeros(self._given[i]) if i in unused else value for i, value in enumerate(arguments)])
            if exchanges:
                if self.keep_graphs is not None:
                    self.keep_graphs()
                return found
            pairs = zip(found, self._needs, strict=True)
            return [None if needs and needs <= unused else value for value, needs in pairs]

        return called


def has_own_functions(program: GraphModule) -> bool:
    """Whether Dynamo has put an `autograd.Function` of the user into a program.

    Its `backward` need not be linear, and gets zeros for results that are unused while others are used.
    """
    graphs = (part.graph for part in program.modules() if isinstance(part, GraphModule))
    return any(node.target is autograd_function_apply for graph in graphs for node in graph.nodes)


def _zeros(traced: Tensor) -> Tensor:
    return torch.empty_strided(traced.shape, traced.stride(), dtype=traced.dtype, device=traced.device).zero_()


def with_unused_results(
    run: Callable[..., Any], eager: Callable[..., Any], unused: UnusedResults
) -> Callable[..., Any]:
    """Return `run`, a program that AOTAutograd has compiled, whose backward graph is told of unused results by None.

    `eager` is the program in eager PyTorch, which runs it where `unused`, those of the program, say that a gradient of
    None would not end at a parameter. Processes that train together get zeros in its place.
    """

    def called(*arguments: Any) -> Any:
        if not torch.is_grad_enabled() or compiled_autograd.compiled_autograd_enabled:
            return run(*arguments)
        if unused.meets_autograd(arguments) and not may_exchange():
            return eager(*arguments)
        since = torch._C._autograd._get_sequence_nr()
        found = run(*arguments)
        for value in found if isinstance(found, list | tuple) else (found,):
            node = value.grad_fn if isinstance(value, Tensor) else None
            for _ in range(_FAR):
                if node is None or type(node).__name__ == _NODE:
                    break
                node = node.next_functions[0][0] if node.next_functions else None
            if node is not None and type(node).__name__ == _NODE and node._sequence_nr() >= since:
                node.set_materialize_grads(False)  # type: ignore[attr-defined]
                break
        return found

    return called


def _is_gradient(node: Node) -> bool:
    """Whether an input of a backward graph is the gradient of a result."""
    return "tangents" in str(node.target) and isinstance(node.meta.get("val"), Tensor)


def without(backward: GraphModule, gradients: Collection[int], unused: Collection[int]) -> GraphModule | None:
    """Return the graph without its inputs at the positions `unused`; None where it is not known how.

    They are some of the `gradients` among its inputs. Results that depend on them alone are None. The graph must be
    linear in the gradients, as autograd's own are, and of fixed sizes.
    """
    graph, copies = Graph(), dict[Node, Node]()
    output = graph.output(graph.graph_copy(backward.graph, copies))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    undefined = {inputs[i] for i in unused}
    defined = {inputs[i] for i in gradients if i not in unused}
    for node in [node for node in graph.nodes if node.op == "call_function"]:
        of = set(node.all_input_nodes)
        if not of & undefined:
            if of & defined:
                defined.add(node)
        elif not of & defined:
            if not _is_linear(node):
                return None
            undefined.add(node)
        elif (part := _defined_part(node, undefined)) is not None:
            node.replace_all_uses_with(part)
        else:
            _fill(graph, node, [one for one in node.all_input_nodes if one in undefined])
            defined.add(node)
    results: Any = output.args[0]
    output.args = (tuple(None if one in undefined else one for one in results),)
    graph.eliminate_dead_code()
    if any(inputs[i].users for i in unused):  # by an operator that does more than compute
        return None
    for i in unused:
        graph.erase_node(inputs[i])
    return GraphModule(backward, graph)


def _is_linear(node: Node) -> bool:
    """Whether an operator gives zeros for zeros, as far as that is known."""
    name = str(getattr(getattr(node.target, "_schema", None), "name", "")).rpartition("::")[2]
    value = node.meta.get("val")
    values = value if isinstance(value, tuple | list) else (value,)
    return name not in _MAKING and all(not isinstance(one, Tensor) or one.is_floating_point() for one in values)


def _defined_part(node: Node, undefined: Collection[Node]) -> Node | None:
    """The other part of a sum of which one is undefined; None where the operator is not such a sum."""
    if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
        return None
    parts = [one for one in node.args if isinstance(one, Node) and one not in undefined]
    if len(parts) != 1:
        return None
    mine, whole = parts[0].meta.get("val"), node.meta.get("val")
    if not isinstance(mine, Tensor) or not isinstance(whole, Tensor):
        return None
    return parts[0] if mine.shape == whole.shape and mine.dtype == whole.dtype else None


def _fill(graph: Graph, node: Node, undefined: Collection[Node]) -> None:
    """Give a node zeros for the inputs that are undefined, as autograd does."""
    for one in undefined:
        value = one.meta["val"]
        with graph.inserting_before(node):
            options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
            zeros = graph.call_function(aten.full.default, (list(value.shape), 0), options)
        zeros.meta["val"] = value
        node.replace_input_with(one, zeros)
