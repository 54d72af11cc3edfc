"""What finds the fastest way to run calls of one graph of AOTAutograd (`CallTunings`), by how the graph is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.fx import GraphModule

from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.graph.captured import Captured
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core import Machine
from threadcast.core.errors import in_one_line
from threadcast.core.settings import Settings
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.spec import CallSpec
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.calls.tunings import CallTunings
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.graph_by_pytorch import as_pytorch, forward_of
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.runtime.watching.model import Watch

Role = Literal["inference", "forward", "backward"]
"""What a graph is: a whole program without gradients, or one of the two passes of one with gradients."""


class GraphTunings:
    """Makes a `Tuning` for a kind of calls of `graph`, or says why PyTorch runs them.

    Calls may have inputs that are fixed weights (`FixedWeights`). Plans of other kinds, in `table`, may fit.
    """

    def __init__(
        self, graph: GraphModule, machine: Machine, options: CompileOptions, *, role: Role, title: str,
        table: CallTable,
    ) -> None:  # fmt: skip
        self._graph, self._options, self._role, self._title = forward_of(graph), options, role, title
        self._table = table
        self.machine = machine
        """The machine on whose cores calls are measured."""
        self._settings = Settings.read()
        self._by_pytorch, self._format, self._watch = as_pytorch(graph), ModelFormat(None), Watch(nn.Module())

    def make(
        self, kind: CallKind, inputs: tuple[Any, ...], fixed: FixedWeights | None, *,
        chosen: Sequence[int] | None, budget: Budget, eager_s: Sequence[float],
    ) -> Tuning | Fallback | None:  # fmt: skip
        """Capture a call, and return what finds the fastest way to run calls of its kind, or why PyTorch runs them.

        With `fixed`, `inputs` are all but these weights. `chosen` are the CPUs that a user has asked for. None where a
        later call has to be captured: other threads capture now.
        """
        try:
            made = self._tunings(fixed).make(
                inputs, kind, chosen=chosen, budget=budget, eager_s=eager_s, looking_s=lambda: 0.0
            )
        except NoTurn:
            return None
        except Exception as error:  # noqa: BLE001 - nothing has run yet, and PyTorch can run it
            return Fallback(f"cannot capture: {in_one_line(error)}")
        return made if isinstance(made, Tuning | Fallback) else None

    def knows(self, kind: CallKind, fixed: FixedWeights | None, chosen: Sequence[int] | None) -> bool:
        """Return whether a plan is stored for calls of this kind, of this graph or of one with the same inputs."""
        return self._tunings(fixed).knows(kind, chosen)

    def _tunings(self, fixed: FixedWeights | None) -> CallTunings:
        """What makes them for calls with these fixed weights."""
        eager = self._by_pytorch if fixed is None else fixed.as_pytorch

        def capture(given: tuple[Any, ...], _: ModelFormat) -> Captured:
            if fixed is not None:
                return fixed.captured(given)
            phase: Literal["backward", "forward"] = "backward" if self._role == "backward" else "forward"
            return capture_graph(self._graph, given, phase=phase)

        def of_backends(cores: int, cpus: Sequence[int] | None) -> Any:
            history = self._settings["engine.plans"] / HISTORY
            return None if fixed is None else fixed.backends(cores, cpus=cpus, history=history)

        def of_stored(cpus: Sequence[int] | None) -> str:
            sizes = [] if fixed is None else [tuple(weight.shape) for weight in fixed.weights]
            return "graph" if fixed is None else f"graph, {installed(cpus)}, weights {sizes}"

        spec = CallSpec(
            shadowed=FunctionalShadow(eager, partial(_in_format, eager)), capture=capture, name=self._role,
            title=self._title, backends=of_backends, among=of_stored, breaks="", gives_back=False,
        )  # fmt: skip
        return CallTunings(
            spec, self.machine, self._settings, model_format=fixed or self._format,
            watch=self._watch, table=self._table, fuse=self._options.fuse, after_first=False,
        )  # fmt: skip


def _in_format(run: Callable[..., Any], model_format: ModelFormat, *inputs: Any) -> Any:
    """Run a graph by PyTorch in the format that was set last."""
    return run(*model_format.arguments(inputs))
