"""`torch.compile(model, backend="threadcast")`: graphs for inference, forward and backward pass, each run by a plan.

PyTorch (Dynamo and AOTAutograd) divides a program into graphs of operators, differentiates them, and runs everything
between them: optimizers, hooks, clipping, accumulation. Each graph is a `GraphCalls`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor
from torch._dynamo import disable
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters, flatten_graph_inputs
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from torch._guards import CompileContext, TracingContext
from torch.fx import GraphModule

from threadcast.capture.graph.fake_tensors import load_fake_tensors
from threadcast.core import Machine
from threadcast.core.errors import CaptureError, in_one_line
from threadcast.core.settings import Settings
from threadcast.runtime.calls.shared_learning import budget, told
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.compiled_call import CompiledCall
from threadcast.runtime.compiled.graph_by_pytorch import as_traced, computes_again, computing_again, forward_of
from threadcast.runtime.compiled.graph_calls import GraphCalls, Role
from threadcast.runtime.compiled.plain_results import PlainResults
from threadcast.runtime.compiled.short_way import ShortWay
from threadcast.runtime.compiled.unused_results import UnusedResults, has_own_functions, with_unused_results, without
from threadcast.runtime.compiled.whole_graphs import check_operators, returns_numbers, tensors_of, with_numbers
from threadcast.runtime.plans.model_cores import core_choice
from threadcast.runtime.plans.plan_store import PlanStore
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.updates.fused_updates import fused_updates
from threadcast.threads.garbage import without_garbage_collection
from threadcast.threads.memory import keep_freed_memory

_graphs: WeakSet[GraphCalls] = WeakSet()
_programs: WeakValueDictionary[int, Program] = WeakValueDictionary()
"""Programs that use only some cores, by the number (`id`) of `given`, which they keep alive."""
_calls: WeakSet[CompiledCall] = WeakSet()
_numbers, _programs_made = count(1), count(1)
_logger = logging.getLogger("threadcast")
_untraced = partial(disable, reason="this graph is compiled already")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program:
    """What the graphs of one program have in common: how they are run, and on which cores.

    Where `torch.compile` was asked for some of the process's cores, `given` are its options as it passes them to the
    backend, and other models choose other cores.
    """

    options: CompileOptions
    machine: Machine
    given: Mapping[str, Any] | None = None


class _Parts(list[GraphCalls]):
    """The graphs of one program so far, what learning may cost all of them, and the results of the forward graph."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget
        self.results: PlainResults | None = None
        self.unused: UnusedResults | None = None
        self.written: tuple[int, ...] = ()
        """Which of the program's inputs its graphs write to, but for parameters and buffers."""


def compiled_graphs() -> list[GraphCalls]:
    """Return the graphs that `torch.compile` has given to this backend and still holds, in the order of compilation."""
    return sorted(_graphs, key=lambda graph: graph.number)


def compiled_calls() -> list[CompiledCall]:
    """Return the programs that `torch.compile` has given to this backend and still holds."""
    return list(_calls)


def backend(
    graph: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Return a callable that does what `graph` does, with gradients; `torch.compile` calls this for every graph.

    InvalidInput for an unknown mode or option. A graph that AOTAutograd cannot handle, and one with operators that only
    PyTorch can run, runs as it is, with a warning. So does one with gradients of which a part is computed again in the
    backward pass (`torch.utils.checkpoint`).
    """
    with without_garbage_collection():  # AOTAutograd takes seconds, a third of it otherwise for collections
        program = _program(CompileOptions.of(mode, options), options)
        with nullcontext() if program.given is None else core_choice().reserving(program.machine, model=program):
            return graph_call(program, graph, example_inputs)


def graph_call(program: Program, graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a callable that does what `graph`, a part of the program, does, with gradients; as `backend`."""
    options, text = program.options, _text(graph, example_inputs)
    among = str(replace(options, tuning_share=1.0, verify_every=0))
    plans = PlanStore(Settings.read()["engine.plans"], program.machine, among=among)
    if text is not None and options.tuning_share < 1 and plans.is_program_left(text):
        _logger.info("a program runs as torch.compile traced it: its graphs were not faster before")
        return _by_pytorch(options, graph, example_inputs)
    if torch.is_grad_enabled() and computes_again(graph):
        return _by_pytorch(options, graph, example_inputs)
    parts = _Parts(budget(options.tuning_share).part())
    compiler = partial(_compiled, program, parts)
    try:
        found = _differentiated(
            graph, example_inputs,
            fw_compiler=partial(compiler, "forward"),
            bw_compiler=lambda *given: _untraced(_untraced(partial(compiler, "backward"))(*given)),
            inference_compiler=partial(compiler, "inference"),
            partition_fn=partial(_partitioned, parts),
        )  # fmt: skip
    except TorchDynamoException:  # Dynamo's own way to try again
        raise
    except CaptureError as error:
        told().tell(str(error))
        return _by_pytorch(options, graph, example_inputs)
    except Exception as error:  # noqa: BLE001 - eager PyTorch runs the graph, so whatever AOTAutograd lacks is no error
        reason = f"AOTAutograd raised {in_one_line(error)}"
        told().tell(reason)
        return _by_pytorch(options, graph, example_inputs)
    unused = parts.unused
    if unused is not None:
        if unused.varies or has_own_functions(graph):  # which of the gradients are zeros is not known
            return _by_pytorch(options, graph, example_inputs)
        found = with_unused_results(found, as_traced(graph), unused)
    if not parts:
        return found
    results = parts.results if unused is None else None
    passes = found if results is None else ShortWay(found, parts, results)
    call = CompiledCall(
        as_traced(graph), passes, parts, budget=parts.budget, written=parts.written,
        title=f"program {next(_programs_made)}", found=None if text is None else plans.program(text),
        keep=(lambda _: None) if text is None else partial(plans.note_program, text),
    )  # fmt: skip
    if unused is not None:
        unused.keep_graphs = call.keep_graphs
    _calls.add(call)
    if options.fuse and any(part.role == "forward" for part in parts):
        fused_updates().adopt(example_inputs)
    return call


def _differentiated(graph: GraphModule, example_inputs: Sequence[Any], **compilers: Any) -> Callable[..., Any]:
    """What AOTAutograd makes of a graph; as Dynamo's `aot_autograd`, which imports Inductor to write logs (0.2 s)."""
    if any(isinstance(value, (list, tuple, dict)) for value in example_inputs):
        run: Callable[..., Any] = flatten_graph_inputs(graph, example_inputs, partial(_differentiated, **compilers))
        return run
    counters["aot_autograd"]["total"] += 1  # by which Dynamo knows what the first call of a part of a DDP model returns
    found: Callable[..., Any] = _untraced(aot_module_simplified(graph, example_inputs, **compilers))
    return found


def _by_pytorch(options: CompileOptions, graph: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return what runs a graph under PyTorch's own autograd, for good."""
    if options.fuse and torch.is_grad_enabled():
        fused_updates().adopt(example_inputs)
    return computing_again(graph) if computes_again(graph) else as_traced(graph)


def _text(graph: GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """A text of a program and its inputs, the same in each process; of sizes that vary it tells about how large.

    None where a part has a body of its own, such as one that is computed again: the program's code does not show it,
    and it may not run as it was traced.
    """
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value", value) for node, value in zip(inputs, example_inputs, strict=True)]
    given = [_described(value) for value in values]
    if None in given or any(isinstance(part, GraphModule) for part in graph.children()):
        return None
    around = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_num_threads()
    return f"{around} {given} {graph.code}"


def _described(value: object) -> tuple[Any, ...] | None:
    """An input of a program; of sizes that vary their symbols and about how large they are. None for other inputs."""
    if isinstance(value, torch.SymInt):
        return value, "about", None if value.node.hint is None else int(math.log(max(1, value.node.hint), 4))
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    sides = [_described(side) if isinstance(side, torch.SymInt) else side for side in (*value.shape, *value.stride())]
    return *sides, value.dtype, value.requires_grad


def _partitioned(parts: _Parts, joint: GraphModule, *arguments: Any, **options: Any) -> tuple[GraphModule, GraphModule]:
    """Divide a graph into forward and backward pass. CaptureError where only PyTorch can run one of its operators."""
    check_operators(joint)
    forward, backward = default_partition(joint, *arguments, **options)
    parts.unused = UnusedResults.of(backward)
    return forward, backward


def _compiled(
    program: Program, parts: _Parts, role: Role, graph: GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Return what runs a graph of operators below autograd, and add it to `parts`."""
    if not any(node.op == "call_function" for node in graph.graph.nodes):
        return make_boxed_func(forward_of(graph))
    if role != "backward":
        parts.written = _written_inputs()
    if role == "inference":
        check_operators(graph)
    if role == "forward" and (notes := _notes()) is not None:
        notes.bw_donated_idxs = []  # the backward graph writes to nothing that was saved for it, and may run once more
        parts.results = None if returns_numbers(graph) else PlainResults.of(notes)
    numbers = returns_numbers(graph)
    run: Callable[..., Any] = _graph_calls(tensors_of(graph) if numbers else graph, program, parts, role)
    run = with_numbers(graph, run) if numbers else run
    if role == "backward" and (unused := parts.unused) is not None:
        run = unused.left_out(run, partial(_without, graph, program, parts))
    found: Callable[..., Any] = make_boxed_func(run)  # as AOTAutograd calls it: with a list, which it may empty
    return found


def _without(graph: GraphModule, program: Program, parts: _Parts, unused: frozenset[int]) -> Callable[..., Any] | None:
    """Return what runs a backward graph without the gradients of these results; None where that is not known."""
    if parts.unused is None or (found := without(graph, parts.unused.gradients, unused)) is None:
        return None
    if any(node.op == "call_function" for node in found.graph.nodes):
        return _graph_calls(found, program, parts, "backward")
    return forward_of(found)


def _graph_calls(graph: GraphModule, program: Program, parts: _Parts, role: Role) -> GraphCalls:
    """Return what runs a graph by a plan where it is faster."""
    number, code, options = next(_numbers), CompileContext.current_compile_id(), program.options
    title = f"graph {number} of torch.compile ({code})"
    weights = _weights_of(graph) if role == "inference" else ()
    calls = GraphCalls(
        graph, program.machine, options, number=number, title=title, budget=parts.budget, role=role, weights=weights
    )
    if program.given is not None:
        core_choice().add(calls.cores, model=program)
    _graphs.add(calls)
    parts.append(calls)
    return calls


def _notes() -> Any:
    """AOTAutograd's notes on the graph that is being compiled; None where there are none."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _written_inputs() -> tuple[int, ...]:
    """The inputs of a program that AOTAutograd has found written to, but for parameters and buffers."""
    if (notes := _notes()) is None:
        return ()
    static = set(notes.static_input_indices)
    return tuple(i for i in notes.mutated_inp_runtime_indices if i not in static)


def _weights_of(graph: GraphModule) -> list[int]:
    """The positions of inputs that are parameters and buffers of modules, by what Dynamo says of the graph."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    static = () if (notes := _notes()) is None else notes.static_input_indices
    return [i for i in static if isinstance(inputs[i].meta.get("val"), Tensor)]


def _program(chosen: CompileOptions, given: Mapping[str, Any] | None) -> Program:
    """The program that a graph belongs to: what one call of `torch.compile` compiles has the same object `given`."""
    found = _programs.get(id(given))
    if found is not None and found.options == chosen:
        return found
    keep_freed_memory()
    load_fake_tensors()
    machine = core_choice().machine(chosen.cores)
    if given is None or chosen.cores is None:
        return Program(chosen, machine)
    _programs[id(given)] = found = Program(chosen, machine, given=given)
    return found
