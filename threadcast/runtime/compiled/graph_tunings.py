"""Captures kinds of calls of one graph of AOTAutograd, and makes what finds the fastest way to run each (`Tuning`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from torch.fx import GraphModule

from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Phase
from threadcast.capture.graph.symbols import takes_the_same_way
from threadcast.capture.graph.values import Dynamic
from threadcast.capture.guards.one_capture import NoTurn
from threadcast.core import Machine
from threadcast.core.errors import CaptureError, in_one_line
from threadcast.core.settings import Settings
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.kinds import CallKind
from threadcast.runtime.calls.shared_learning import planner_for
from threadcast.runtime.calls.size_families import SizeFamily
from threadcast.runtime.calls.table import CallTable
from threadcast.runtime.check.functional import FunctionalShadow
from threadcast.runtime.compiled.compile_options import CompileOptions
from threadcast.runtime.compiled.fixed_weights import FixedWeights
from threadcast.runtime.compiled.kinds_in_channels_last import KindsInChannelsLast
from threadcast.runtime.layout.graph_by_pytorch import as_pytorch, forward_of
from threadcast.runtime.layout.graph_layout import ChannelsLast
from threadcast.runtime.plans.backend_history import NAME as HISTORY
from threadcast.runtime.plans.model_format import ModelFormat
from threadcast.runtime.plans.plan_store import NoPlanStore, PlanStore
from threadcast.runtime.plans.step_forecasts import store_of
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.runtime.tuner.budget import Budget
from threadcast.runtime.tuner.tuning import Tuning

Role = Literal["inference", "forward", "backward"]
"""What a graph is: a whole program without gradients, or one of the two passes of one with gradients."""


class GraphTunings:
    """Makes a `Tuning` for a kind of calls of `graph`, or says why PyTorch runs them.

    Calls have inputs that are fixed weights (`FixedWeights`), or are of a kind that runs in channels last by `layouts`,
    or neither. Plans of other kinds, in `table`, may fit.
    """

    def __init__(
        self, graph: GraphModule, machine: Machine, options: CompileOptions, *, role: Role, title: str,
        table: CallTable, layouts: KindsInChannelsLast,
    ) -> None:  # fmt: skip
        self._graph, self._options, self._role, self._title = forward_of(graph), options, role, title
        self._table, self._layouts = table, layouts
        self.machine = machine
        """The machine on whose cores calls are measured."""
        settings = Settings.read()
        self._store, self._folder = store_of(settings), settings["engine.plans"]
        self._by_pytorch = as_pytorch(graph)
        self._format = ModelFormat(None)

    def make(
        self, kind: CallKind, inputs: tuple[Any, ...], fixed: FixedWeights | None, family: SizeFamily | None, *,
        chosen: Sequence[int] | None, budget: Budget, eager_s: Sequence[float],
    ) -> Tuning | Fallback | None:  # fmt: skip
        """Capture a call, and return what finds the fastest way to run calls of its kind, or why PyTorch runs them.

        With `fixed`, `inputs` are all but these weights. With `family` the graph is one for all its sizes. `chosen` are
        the CPUs that a user has asked for. None where a later call has to be captured: other threads capture now.
        """
        options: dict[str, Any] = {
            "call": self._call(kind),
            "fuse": self._options.fuse and family is None,
            "store": self._store if family is None else None,
            "like": [tuning.plan for tuning in reversed(self._table.tunings) if tuning.plan is not None],
            "budget": budget,
            "eager_s": eager_s,
            "planner": planner_for(self.machine),
            "title": self._title,
            "steady": family is None,
        }
        try:
            if fixed is not None and family is None:
                return self._with_weights(fixed, inputs, options, chosen)
            if (layout := self._layouts.get(kind)) is not None:
                return self._in_channels_last(layout, inputs, options)
            plans = self._plans() if family is None else NoPlanStore(self.machine)
            return self._as_given(inputs, fixed, family, options | {"plans": plans})
        except NoTurn:
            return None
        except CaptureError as error:
            return Fallback(str(error))
        except Exception as error:  # noqa: BLE001 - nothing has run yet, and PyTorch can run it
            return Fallback(f"cannot capture: {in_one_line(error)}")

    def knows(self, kind: CallKind, fixed: FixedWeights | None, chosen: Sequence[int] | None) -> bool:
        """Return whether a plan is stored for calls of this kind, of this graph or of one with the same inputs."""
        in_channels_last = self._layouts.get(kind) is not None
        others = [str(MemoryFormat.CHANNELS_LAST)] if in_channels_last else [] if fixed is None else [installed(chosen)]
        return self._plans(*others).knows(self._call(kind))

    def _call(self, kind: CallKind) -> object:
        return self._role, kind.arguments

    def _with_weights(
        self, fixed: FixedWeights, inputs: tuple[Any, ...], options: dict[str, Any], chosen: Sequence[int] | None
    ) -> Tuning:
        """What runs calls on the same weights: also in channels last, and by backends."""
        return Tuning(
            fixed.as_pytorch,
            partial(fixed.captured, inputs),
            fixed,
            fixed.formats(inputs),
            self.machine,
            plans=self._plans(installed(chosen)),
            backends=fixed.backends(
                len(self.machine),
                cpus=chosen,
                history=self._folder / HISTORY,
            ),
            checked=FunctionalShadow(fixed.as_given_by_pytorch),
            **options,
        )

    def _in_channels_last(self, layout: ChannelsLast, inputs: tuple[Any, ...], options: dict[str, Any]) -> Tuning:
        """What runs calls in channels last; all that runs them returns its results in the same strides."""
        captured = capture_graph(layout, inputs, phase=self._phase)
        checked, formats = FunctionalShadow(layout.arranged_as(layout(*inputs))), (MemoryFormat.AS_GIVEN,)
        return Tuning(
            layout, lambda _: captured, self._format, formats, self.machine, checked=checked,
            plans=self._plans(str(MemoryFormat.CHANNELS_LAST)), **options,
        )  # fmt: skip

    def _as_given(
        self, inputs: tuple[Any, ...], fixed: FixedWeights | None, family: SizeFamily | None, options: dict[str, Any]
    ) -> Tuning:
        captured = self._captured(inputs, fixed, family)
        run = self._by_pytorch if fixed is None else fixed.as_given_by_pytorch
        return Tuning(
            run,
            lambda _: captured,  # must not hold the inputs: in a backward pass they are all activations
            self._format,
            (MemoryFormat.AS_GIVEN,),
            self.machine,
            checked=FunctionalShadow(run),
            **options,
        )

    def _plans(self, *others: str) -> PlanStore:
        """The stored plans; `others` names what they were found among beside the graph's own."""
        among = ", ".join([f"graph, own operators: {self._options.fuse}", *others])
        return PlanStore(self._folder, self.machine, among=among)

    @property
    def _phase(self) -> Phase:
        return "backward" if self._role == "backward" else "forward"

    def _captured(self, inputs: tuple[Any, ...], fixed: FixedWeights | None, family: SizeFamily | None) -> Captured:
        """The graph for these inputs, or for all sizes of `family`."""

        def capture(dynamic: Dynamic | None) -> Captured:
            if fixed is not None:
                return fixed.captured(inputs, MemoryFormat.AS_GIVEN, dynamic)
            return capture_graph(self._graph, inputs, phase=self._phase, dynamic=dynamic)

        def capture_several(dynamic: Dynamic) -> Captured:
            captured = capture(dynamic)
            if not takes_the_same_way(captured, capture(None)):
                raise CaptureError("cannot capture for several sizes: the graph takes another way with symbols")
            return captured

        return capture(None) if family is None else family.captured(capture_several)
