"""The short way from a call that Dynamo has traced to its graphs, and from autograd to the backward graph.

AOTAutograd's wrappers and what `GraphCalls` looks at take 0.2 to 0.9 ms of a training step (decision 37). Most of it
finds out again, in Python and for each saved tensor, what was the same in the call before. Once both graphs of a call
have settled, `ShortWay` learns from a call by the long way what goes where, and the next ones take the short one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.nn import Parameter

from threadcast.capture.graph.captured import CapturedGraph
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.compiled.graph_calls import GraphCalls
from threadcast.runtime.compiled.plain_results import PlainResults
from threadcast.runtime.engine.engine import Engine
from threadcast.runtime.engine.native.library import loaded_library
from threadcast.runtime.tuner.candidate import Way
from threadcast.runtime.tuner.first_steps import Draws
from threadcast.runtime.tuner.tuning import Tuning
from threadcast.threads.forks import forks

CALLS = 20
"""Calls by the short way, after which one goes the long way: there drift, feedback and cores are looked at. Also the
calls between two that try to learn the short way. A convention."""

_logger = logging.getLogger("threadcast")

_TWICE = b"torch.compile with aot_autograd does not currently support double backward"
_TRANSFORMED = (
    "It looks like you're trying to call a compiled backward function within vmap/grad/vjp, which isn't supported. Try "
    "wrapping vmap inside torch.compile, or skip compiling the backward function."
)
_DETERMINISTIC = (
    "This compiled backward function is being run with torch.use_deterministic_algorithms(True), but it was previously "
    "generated during the forward function while torch.use_deterministic_algorithms(False) was set."
)
"""AOTAutograd's own words."""


class ShortWay:
    """A callable that does what `graphs` does, a program that AOTAutograd has compiled to `parts`, with gradients.

    `results` are those of its forward graph. It calls `graphs` itself until both graphs have settled, where a call
    looks otherwise, and once in a while. What goes where is taken from AOTAutograd's notes, and compared with what it
    does in such a call. May be called from several threads.
    """

    def __init__(self, graphs: Callable[..., Any], parts: Sequence[GraphCalls], results: PlainResults) -> None:
        self._graphs, self._parts, self._results = graphs, parts, results
        self._forks = forks.number
        self._passes: Passes | None = None
        self._left = 0
        """Calls that go the short way before one goes the long way; or before the next one from which it is learned."""
        self.calls = 0
        """Calls so far by the short way."""

    def __call__(self, *arguments: Any) -> Any:
        if compiled_autograd.compiled_autograd_enabled or self._forks != forks.number:
            return self._graphs(*arguments)  # which compiled autograd traces, and which take no locks in a fork
        passes = self._passes
        if passes is None or self._left <= 0 or not passes.fit(arguments):
            return self._long(arguments)
        self._left -= 1
        self.calls += 1
        draws = Draws(random=passes.forward.random)
        written = [arguments[i] for i in passes.results.written[:1]]
        versions = [one._version for one in written]

        def has_not_run(_: Exception) -> bool:
            self._passes = None
            return versions == [one._version for one in written]

        with Failure(has_not_run):
            return _apply(passes, *arguments)
        draws.set_back()  # the long way runs it again, which raises what is the program's own
        return self._graphs(*arguments)

    def _long(self, arguments: tuple[Any, ...]) -> Any:
        passes = self._passes
        if passes is not None and not (passes.hold() and self._left <= 0):
            self._passes, passes = None, None
        if passes is not None:
            self._left = CALLS
            return self._graphs(*arguments)
        self._left -= 1
        if self._left > 0 or not torch.is_grad_enabled() or not _all_plain(arguments):
            return self._graphs(*arguments)
        self._left = CALLS
        settled = self._settled()
        return self._graphs(*arguments) if settled is None else self._learned_from(arguments, *settled)

    def _settled(self) -> tuple[GraphCalls, GraphCalls] | None:
        """Forward and backward graph; None while they have not settled, and where there are others."""
        parts = {part.role: part for part in self._parts}
        if len(self._parts) != 2 or set(parts) != {"forward", "backward"}:
            return None
        forward, backward = parts["forward"], parts["backward"]
        return (forward, backward) if forward.has_settled and backward.has_settled else None

    def learns(self) -> bool:
        """Return whether calls may soon go the short way, and do not yet; the next one tries to learn it."""
        passes = self._passes
        if (passes is not None and passes.hold()) or self._settled() is None:
            return False
        self._left = 0
        return True

    def _learned_from(self, arguments: tuple[Any, ...], forward: GraphCalls, backward: GraphCalls) -> Any:
        native = loaded_library()
        if native is None:
            return self._graphs(*arguments)
        seen = _Seen(native, (forward, backward), self._results, arguments, self._found)
        forward.watch(_harmless(seen.forward))
        backward.watch(_harmless(seen.backward))
        try:
            found = self._graphs(*arguments)
        finally:
            forward.watch(None)
        _harmless(seen.returned)(found)
        return found

    def forget(self) -> None:
        """Free what was learned; calls go the long way."""
        self._passes = None

    def _found(self, passes: Passes) -> None:
        self._passes, self._left = passes, CALLS


@dataclass(frozen=True, slots=True)
class _Way:
    """What runs one of the graphs since it has settled."""

    part: GraphCalls
    runner: Tuning
    kept: Way

    @property
    def random(self) -> bool:
        """Whether the graph draws random numbers."""
        return self.runner.captured.random

    @property
    def engine(self) -> Engine | None:
        """The engine that runs it, if a plan does."""
        return self.kept.engine

    def holds(self) -> bool:
        """Whether it still runs the graph."""
        return self.part.keeps(self.runner, self.kept)

    def serves(self) -> bool:
        """Whether the next call may go this way."""
        return self.part.may_be_passed_by


@dataclass(frozen=True, slots=True)
class Passes:
    """A forward and a backward pass by what runs them (`_Way`), and natively by what goes where."""

    results: PlainResults
    forward: _Way
    backward: _Way
    first: Any
    """The native `Forward`."""
    second: Any
    """The native `Backward`."""
    casts: bool
    """Whether autocast is on around the calls: the graphs have its casts, and must not be cast again."""
    deterministic: bool
    """Whether deterministic algorithms were asked for, for which Dynamo compiles again."""

    def hold(self) -> bool:
        """Whether the graphs are still run as they were."""
        return self.forward.holds() and self.backward.holds()

    def fit(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call may go this way."""
        return self.forward.serves() and bool(self.first.fits(arguments))

    def without_casts(self) -> AbstractContextManager[Any]:
        """A context for both passes, without autocast where it is on around the calls."""
        return torch._C._DisableAutocast() if self.casts else nullcontext()

    def run_forward(self, arguments: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
        """Return the program's results, and what its backward pass needs."""
        first, engine = self.first, self.forward.engine
        if engine is None:
            divided: tuple[list[Tensor], Any] = first.divided(self.forward.kept.run(*arguments), arguments)
            return divided
        found: tuple[list[Tensor], Any] = engine.lend(lambda relay: relay.forward(first, arguments))
        return found

    def run_backward(self, saved: Any, gradients: tuple[Any, ...], *, last: bool) -> Sequence[Tensor | None]:
        """Return the gradients of all inputs; the `last` pass frees what was saved while it runs."""
        second, engine, serves = self.second, self.backward.engine, self.backward.serves()
        draws = Draws(random=serves and self.backward.random)
        found: Sequence[Tensor | None] | None = None
        if engine is not None and serves:
            with Failure(lambda _: not saved.dropped):  # else it was in its midst
                found = engine.lend(lambda relay: relay.backward(second, saved, gradients, last))
            if found is not None:
                return found
            draws.set_back()
        inputs = second.inputs(saved, gradients)  # raises where one of the caller's tensors was written since
        if engine is None and serves and second.fits(inputs):
            with Failure():  # PyTorch runs it again, which raises what is the program's own
                found = self.backward.kept.run(*inputs)
            if found is not None:
                return found
            draws.set_back()
        again: Sequence[Tensor | None] = self.backward.part(*inputs)
        return again


_untraced: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.compiler.disable


class _ShortPass(torch.autograd.Function):
    """Both passes as autograd calls them."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *arguments: Any) -> Any:
        with passes.without_casts():
            found, ctx.saved = passes.run_forward(arguments)
        ctx.passes = passes
        ctx.mark_non_differentiable(
            *[one for one, wanted in zip(found, passes.results.differentiable, strict=True) if not wanted]
        )
        ctx._materialize_non_diff_grads = False
        return tuple(found)

    @staticmethod
    @_untraced  # compiled autograd has Dynamo trace what is called in backward passes
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise RuntimeError(_TRANSFORMED)
        if torch.are_deterministic_algorithms_enabled() and not ctx.passes.deterministic:
            raise RuntimeError(_DETERMINISTIC)
        _ = ctx.saved_tensors  # there are none; after a pass that has freed the graph this raises PyTorch's own error
        last = not torch._C._autograd._get_current_graph_task_keep_graph()
        with torch.no_grad(), ctx.passes.without_casts():
            found = ctx.passes.run_backward(ctx.saved, gradients, last=last)
        if last:
            ctx.saved.drop()
        return None, *(_not_twice(found) if torch.is_grad_enabled() else found)


_apply: Callable[..., Any] = super(torch.autograd.Function, _ShortPass).apply
"""Without looking for wrappers of functorch, in which no call fits."""


def _not_twice(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients, whose own gradient raises AOTAutograd's error; as `once_differentiable` does it."""
    delayed: Any = torch._C._functions.DelayedError(_TWICE, len(gradients))
    found: Any = delayed(*[None if one is None else one.detach().requires_grad_() for one in gradients])
    given: Sequence[Tensor | None] = found if isinstance(found, tuple) else (found,)
    return given


def _harmless(note: Callable[..., None]) -> Callable[..., None]:
    """`note`, which raises nothing: the call that it takes note of has succeeded."""

    def noted(*seen: Any) -> None:
        try:
            note(*seen)
        except Exception:
            _logger.exception("the short way to graphs is not learned from a call")

    return noted


class _Seen:
    """What one call by the long way, in one thread, shows of what goes where; `done` takes what was learned."""

    def __init__(
        self, native: Any, parts: tuple[GraphCalls, GraphCalls], results: PlainResults, arguments: tuple[Any, ...],
        done: Callable[[Passes], None],
    ) -> None:  # fmt: skip
        self._native, self._parts, self._results, self._done = native, parts, results, done
        self._thread = threading.get_ident()
        self._looks = native.Looks(arguments)
        self._casts = torch._C._is_any_autocast_enabled()
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._given = list(map(_place, arguments))
        self._inner = [one.requires_grad and not isinstance(one, Parameter) for one in arguments]
        """Which arguments may have a history."""
        self._places: list[_Place] = []
        """Of the forward graph's results."""
        self._forward: tuple[_Way, Any] | None = None
        self._is_plain = False
        """Whether AOTAutograd did with the results what its notes say."""

    def forward(self, runner: Tuning, arguments: tuple[Any, ...], found: Any) -> None:
        """Take note of a call of the forward graph."""
        results, numbers = self._results, _numbers_of(runner, len(arguments))
        if threading.get_ident() != self._thread or numbers is None or not _all_plain(found):
            return
        if not _all_plain(arguments) or list(map(_place, arguments)) != self._given:
            return
        self._places = list(map(_place, found))
        way, wanted, others = numbers
        native = self._native.Forward(
            looks=self._looks, written=results.written, outputs=len(results.differentiable), wanted=wanted,
            others=others,
        )  # fmt: skip
        self._forward = _Way(self._parts[0], runner, way), native

    def returned(self, found: Any) -> None:
        """Take note of what AOTAutograd has returned."""
        results = self._results
        if self._forward is not None and _all_plain(found):
            first = len(results.written)
            same = list(map(_place, found)) == self._places[first : first + len(results.differentiable)]
            self._is_plain = same and tuple(one.requires_grad for one in found) == results.differentiable

    def backward(self, runner: Tuning, arguments: tuple[Any, ...], found: Any) -> None:
        """Take note of a call of the backward graph."""
        self._parts[1].watch(None)
        numbers = _numbers_of(runner, len(arguments))
        if self._forward is None or not self._is_plain or numbers is None or not _all_plain(arguments):
            return
        results, (forward, first) = self._results, self._forward
        saved = self._places[len(results.written) + len(results.differentiable) :]
        gradients = [i for i, one in enumerate(results.differentiable) if one]
        rightly = len(arguments) == len(saved) + len(gradients) and len(found) == len(self._given)
        if not rightly or list(map(_place, arguments[: len(saved)])) != saved:
            return
        if any(one is None and inner for one, inner in zip(found, self._inner, strict=True)):
            return  # AOTAutograd keeps autograd from walking through such an argument's history
        kept, wanted, others = numbers
        captured = None if kept.engine is None else kept.engine.captured
        apart = captured.apart if isinstance(captured, CapturedGraph) else ()
        second = self._native.Backward(
            looks=self._native.Looks(arguments), gradients=gradients, wanted=wanted, others=others, apart=apart
        )
        backward = _Way(self._parts[1], runner, kept)
        self._done(Passes(results, forward, backward, first, second, self._casts, self._deterministic))


def _numbers_of(runner: Tuning, arguments: int) -> tuple[Way, Sequence[int | None], list[Any]] | None:
    """What runs a graph, the numbers of its results in its engine, and what that takes beside the arguments."""
    kept = runner.kept
    if kept is None or kept.engine is None:
        return None if kept is None else (kept, (), [])
    captured = kept.engine.captured
    numbers = kept.engine.results
    others = captured.constants(arguments) if isinstance(captured, CapturedGraph) else None
    return None if numbers is None or others is None else (kept, numbers, others)


_Place = tuple[Any, ...]


def _place(value: Tensor) -> _Place:
    """Where a tensor's numbers lie, and how."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _all_plain(values: Any) -> bool:
    """Whether all are tensors that have strides, in the CPU's memory."""
    return isinstance(values, list | tuple) and all(
        isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"
        and not value.is_nested for value in values
    )  # fmt: skip
