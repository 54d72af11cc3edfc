"""What finds the fastest way to run calls of one graph of AOTAutograd (`CallTunings`), by how the graph is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.fx import GraphModule

from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.graph.captured import Captured
from threadcast.core.settings import Settings
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.calls.tunings import CallTunings
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_by_pytorch import as_pytorch, forward_of
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.watching.model import Watch

Role = Literal["inference", "forward", "backward"]
"""What a graph is: a whole program without gradients, or one of the two passes of one with gradients."""


def graph_tunings(
    graph: GraphModule, fixed: FixedWeights | None, options: CompileOptions, *, role: Role, title: str,
    table: CallTable,
) -> CallTunings:  # fmt: skip
    """Return what finds the fastest way to run calls of `graph`; with `fixed`, of calls without these weights.

    Plans of other kinds, in `table`, may fit.
    """
    called, settings = forward_of(graph), Settings.read()
    eager = as_pytorch(graph) if fixed is None else fixed.as_pytorch
    phase: Literal["backward", "forward"] = "backward" if role == "backward" else "forward"

    def capture(given: tuple[Any, ...], _: ModelFormat) -> Captured:
        return capture_graph(called, given, phase=phase) if fixed is None else fixed.captured(given)

    def of_backends(cores: int, cpus: Sequence[int] | None) -> Any:
        history = settings["engine.plans"] / HISTORY
        return None if fixed is None else fixed.backends(cores, cpus=cpus, history=history)

    def of_stored(cpus: Sequence[int] | None) -> str:
        sizes = [] if fixed is None else [tuple(weight.shape) for weight in fixed.weights]
        return "graph" if fixed is None else f"graph, {installed(cpus)}, weights {sizes}"

    spec = CallSpec(
        shadowed=FunctionalShadow(eager, partial(_in_format, eager)), capture=capture, name=role, title=title,
        backends=of_backends, among=of_stored, breaks="", gives_back=False,
    )  # fmt: skip
    return CallTunings(
        spec, settings, model_format=fixed or ModelFormat(None), watch=Watch(nn.Module()), table=table,
        fuse=options.fuse, after_first=False,
    )  # fmt: skip


def _in_format(run: Callable[..., Any], model_format: ModelFormat, *inputs: Any) -> Any:
    """Run a graph by PyTorch in the format that was set last."""
    return run(*model_format.arguments(inputs))
