"""The weights of a graph for inference: inputs that are the same tensors in all calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from threadcast.capture.graph.capture import capture_graph
from threadcast.capture.graph.captured import Captured, CapturedGraph
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.compiled.graph_by_pytorch import forward_of
from threadcast.runtime.tuner.candidate import Backends, MakeBackends, Way


class FixedWeights:
    """Those inputs of a graph at `positions`, which the caller says are the same in all calls, and calls without them.

    So backends become possible, which work on copies: after a write that `WeightVersions` notices they run no more. The
    weights are not kept alive; `gone` is called when one of them is freed.
    """

    def __init__(
        self, graph: GraphModule, positions: Sequence[int], arguments: Sequence[Any],
        *, gone: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._graph, self._positions = forward_of(graph), tuple(positions)
        at = set(positions)
        self._others = tuple(i for i in range(len(arguments)) if i not in at)
        weights = [arguments[i] for i in self._positions]
        self._references = tuple(weakref.ref(weight, lambda _: gone()) for weight in weights)
        self._may_copy = not any(weight.is_inference() for weight in weights)  # which have no versions

    def same(self, arguments: Sequence[Any]) -> bool:
        """Return whether a call has these weights."""
        return all(map(is_, map(arguments.__getitem__, self._positions), self.weights))

    @property
    def weights(self) -> list[Tensor]:
        """The weights, which a caller holds while a call runs."""
        return [reference() for reference in self._references]  # type: ignore[misc]

    def without(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Return a call's other inputs."""
        return tuple([arguments[i] for i in self._others])

    def as_pytorch(self, *inputs: Any) -> list[Any]:
        """Run the graph in PyTorch on the weights."""
        with torch.no_grad():
            return self._with(self.weights, *inputs)

    def captured(self, inputs: tuple[Any, ...]) -> CapturedGraph:
        """Capture the graph; the tensors in `inputs` are kept as its example."""
        captured = capture_graph(self._with, inputs, weights=self.weights)
        return replace(captured, held=_Held(captured.held, self._references), weakly=True)

    def backends(self, cores: int, **options: Any) -> MakeBackends | None:
        """Return what begins a search for backends, if there may be any."""
        if not self._may_copy:
            return None
        module = _Module(self)

        def make(captured: Captured, arguments: tuple[Any, ...], result: Any) -> Backends | None:
            given: tuple[tuple[Any, ...], dict[str, Any]] = arguments, {}
            return _Backends(module, given, captured, cores, result=list(result), **options)

        return make

    def _with(self, weights: Sequence[Tensor], *inputs: Any) -> list[Any]:
        """The graph's results with these weights."""
        at = zip((*self._positions, *self._others), (*weights, *inputs), strict=True)
        merged = [value for _, value in sorted(at, key=itemgetter(0))]
        found: list[Any] = list(self._graph(*merged))
        return found


class _Held(Mapping[int, Any]):
    """What a captured graph holds, of which the caller's own weights may be freed."""

    def __init__(self, held: Mapping[int, Any], references: Sequence[weakref.ref[Tensor]]) -> None:
        known = {id(reference()): reference for reference in references}
        self._strongly = {slot: value for slot, value in held.items() if id(value) not in known}
        self._weakly = {slot: known[id(value)] for slot, value in held.items() if id(value) in known}

    def __getitem__(self, slot: int) -> Any:
        return self._weakly[slot]() if slot in self._weakly else self._strongly[slot]

    def __iter__(self) -> Iterator[int]:
        return iter([*self._strongly, *self._weakly])

    def __len__(self) -> int:
        return len(self._strongly) + len(self._weakly)


class _Module(nn.Module):
    """The graph with its weights, as the module that a search for backends is for."""

    def __init__(self, weights: FixedWeights) -> None:
        super().__init__()
        self._run = weights.as_pytorch
        self.eval()

    def forward(self, *inputs: Any) -> list[Any]:
        return self._run(*inputs)


class _Backends(BackendSearch):
    """A search for backends whose ways take a graph's inputs one by one, as plans of the graph do."""

    def poll(self, *, unlimited: bool = False) -> Way | None:
        found = super().poll(unlimited=unlimited)
        if found is None:
            return None
        run = found.run
        return replace(found, run=lambda *inputs: run(inputs, {}))
