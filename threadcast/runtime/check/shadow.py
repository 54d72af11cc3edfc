"""Runs a step optimised and by eager PyTorch from the same state, and compares what both give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core import Plan
from threadcast.core.errors import WrongResult
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.check.bits import Difference, Room, first_difference, roughly, update_room
from threadcast.runtime.check.judge import (
    BothOrders,
    Compared,
    EagerValues,
    WrongOperator,
    calls_of,
    copied_bytes,
    judged_run,
    substitutes,
)
from threadcast.runtime.check.step_state import StepState, needed_bytes, too_large
from threadcast.runtime.check.telling import tells
from threadcast.runtime.engine.engine import Engine
from threadcast.threads.memory import free_bytes

Run = Callable[..., Any]

COPIES = 3
"""Copies of all that a step may change: as before the step, and as each of the two runs leaves it."""
_RERUNS, _MORE = 3, 8
"""Times a step is run again at most to see whether its values repeat their bits, and where some of them do not."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """A step's model and optimizer, and how eager PyTorch runs the step.

    `eager` runs the whole step. `trace` only calls the operators of the forward and backward pass, in the order in
    which they were captured and in the model's current format, and changes no parameter. `values` returns the parts of
    a step's result by name.

    A `functional` step changes nothing but the state of random generators, so nothing is copied: its arguments may be
    parameters that other threads read, or tensors whose version autograd has noted.
    """

    eager: Run
    trace: Run
    model: nn.Module | None
    optimizer: Optimizer | None
    values: Callable[[Any], dict[str, Any]]
    functional: bool = False

    def state(self, arguments: Any, captured: Captured | None) -> StepState:
        """Return copies of all that the step may change: the model's own state and tensors that the graph writes to."""
        if self.functional:
            return StepState(None, None, (), draws=may_draw(captured))
        return StepState(
            self.model, self.optimizer, arguments, written=_written(captured), draws=may_draw(captured),
            reads_arguments=captured is not None and not _writes_arguments(captured),
        )  # fmt: skip

    def too_large(self, arguments: Any, captured: Captured | None) -> str | None:
        """Return why memory is too small for the copies of `checked_step`; None if it is not.

        The results of a functional step are taken to be no larger than its arguments.
        """
        needed = needed_bytes(self.model, self.optimizer, arguments, _written(captured))
        judged = 0 if captured is None else copied_bytes(captured, substitutes(captured))
        return too_large((1 if self.functional else COPIES) * needed + judged, free_bytes())

    def values_after(self, result: Any, start: StepState) -> dict[str, Any]:
        """Return copies of all values of a step that gave `result`, by name."""
        return {**self.copied(result), **start.now()}

    def copied(self, result: Any) -> dict[str, Any]:
        """Return copies of the parts of a step's result, by name."""
        found = self.values(result).items()
        return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in found}


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What ran an optimised step: its graph and plan, and a function that makes an engine with the same plan."""

    captured: Captured
    plan: Plan
    make_engine: Callable[[Captured], Engine]


@dataclass(slots=True, eq=False)
class Judged:
    """What was judged, of all that runs one call: its graphs, and whether PyTorch gives the same in channels last."""

    graphs: set[Captured] = field(default_factory=set)
    order: bool = False


class Checked(NamedTuple):
    """Eager's result of a step, and how another run's results differ from it."""

    result: Any
    difference: Difference | None
    """The first value that differs; None where all agree."""
    tells: bool
    """Whether what eager's step gave would show wrong numbers, as zeros would not."""
    raised: bool = False
    """Whether the difference is that the other run has raised an exception."""


def checked_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, *,
    ran: Callable[[], Ran | None] = lambda: None, in_order: Callable[[], Run | None] = lambda: None,
    judged: Judged | None = None, by_pytorch: Callable[[], bool] = lambda: False, by_library: bool = False,
) -> Checked:  # fmt: skip
    """Run a step by eager PyTorch and by `run`, both from the same state, and compare the results.

    `captured` is the step's graph. Called after the step, `ran` returns the plan that ran it, `in_order` what runs a
    step by eager PyTorch in channels last, if `run` has that, and `by_pytorch` says whether `run` was eager PyTorch's:
    nothing is to be compared then, as its kernels need not repeat their bits. Without a plan the results must have
    eager's bits, but for roundings where another library may run the step (`by_library`). What is `judged` need not be
    judged again.

    An exception of `run` counts as a difference. Model, optimizer and random state are left as eager leaves them. Takes
    the memory that `Shadowed.too_large` asks for.
    """
    judged = Judged() if judged is None else judged
    start = step.state(arguments, captured)
    result = step.eager(*arguments)
    wanted = step.copied(result)
    end = step.state(arguments, captured)
    wanted.update(end.values)
    if (name := start.written_besides()) is not None:
        known = None if by_pytorch() else Difference(name, "eager writes to it, the plan does not")
        return Checked(result, known, True)
    try:
        start.restore()
        with Failure() as failure:
            found = step.values_after(run(*arguments), start)
        if failure.error is not None:  # eager has run, so whatever this raises is the plan's own
            return Checked(result, Difference("the step", str(failure)), True, raised=True)
        if by_pytorch():
            return Checked(result, None, True)
        telling = _tells(step, result, wanted, start, arguments)
        comparison = _Comparison(step, start, arguments, wanted)
        with Failure() as failure:  # the caller's own step has succeeded
            difference = comparison.of(ran(), found, in_order(), judged, telling=telling, by_library=by_library)
        if failure.error is not None:
            difference = Difference("its graph", str(failure))
        return Checked(result, difference, telling)
    finally:
        end.restore()


def verified_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, ran: Callable[[], Ran | None],
    in_order: Callable[[], Run | None] = lambda: None, by_pytorch: Callable[[], bool] = lambda: False,
) -> Any:  # fmt: skip
    """Run a step as `checked_step` does, and return eager PyTorch's result.

    WrongResult where the other run differs, which names the value, and the first operator whose result does.
    """
    checked = checked_step(
        step, run, arguments, captured, ran=ran, in_order=in_order, by_pytorch=by_pytorch, by_library=True
    )
    if checked.difference is not None:
        raise WrongResult(f"an optimised step did not give what PyTorch gives: {checked.difference}")
    return checked.result


class _Comparison:
    """Compares what runs a step with eager PyTorch's values `wanted` of it, each from the state `start`."""

    def __init__(self, step: Shadowed, start: StepState, arguments: Sequence[Any], wanted: Mapping[str, Any]) -> None:
        self._step, self._start, self._arguments, self._wanted = step, start, arguments, wanted

    def of(
        self, by: Ran | None, found: Mapping[str, Any], in_order: Run | None, judged: Judged, *, telling: bool,
        by_library: bool,
    ) -> Difference | None:  # fmt: skip
        """How values found differ from eager's, which `by` has run, or eager itself; None at once where none do.

        `in_order` runs eager's step in channels last, if it was run so. What is `judged` is not judged again; what a
        step that is `telling` shows to be right is noted there.
        """
        if first_difference(self._wanted, found) is None:
            return None
        if by is None and in_order is None and by_library:
            return self._roughly(found)
        if in_order is not None and not judged.order:
            if (difference := self._in_both_orders(in_order)) is not None:
                return difference
            judged.order = telling
        run = self._step.eager if in_order is None else in_order
        wanted = self._wanted if in_order is None else self._values(run)
        if by is None:
            return self._repeated(wanted, found, partial(self._values, run))
        if by.captured not in judged.graphs:
            if (difference := self._of_graph(by.captured, wanted, run)) is not None:
                return difference
            if telling:
                judged.graphs.add(by.captured)
        threads = [by.plan.by_id()[op].threads for op in by.captured.graph.ids]
        again = partial(self._values, partial(by.captured.run, threads=threads))
        return self._repeated(again(), found, again)

    def _roughly(self, found: Mapping[str, Any]) -> Difference | None:
        """How values found differ from eager's by more than another library's roundings."""
        return first_difference(self._wanted, found, self._rough)

    def _in_both_orders(self, in_order: Run) -> Difference | None:
        """How eager's step in channels last differs from that in the order as given, operator by operator."""
        found = self._values(in_order, judge := BothOrders())
        return judge.difference or self._roughly(found)

    def _of_graph(self, captured: Captured, wanted: Mapping[str, Any], eager_run: Run) -> Difference | None:
        """How a graph, run op after op with eager's own results of what stands for an operator, differs from eager.

        These are the values `wanted`, of `eager_run`. Names the first operator that differs on eager's inputs.
        """
        pairs = substitutes(captured)
        result, wrong = self._judged(captured, pairs)
        difference = None if wrong is None else Difference(wrong.op, str(wrong))
        if difference is None:
            found = self._step.values_after(result, self._start)
            difference = self._repeated(wanted, found, partial(self._values, eager_run), self._updated)
        pairs = {**calls_of(captured), **pairs}
        if difference is None or too_large(copied_bytes(captured, pairs), free_bytes()) is not None:
            return difference
        first = self._judged(captured, pairs)[1]
        return difference if first is None else Difference(first.op, str(first))

    def _judged(self, captured: Captured, pairs: Compared) -> tuple[Any, WrongOperator | None]:
        """What a graph returns with eager's results of some operators, and the first of these that differs."""
        eager = EagerValues({name for one in pairs.values() for _, name, _ in one})
        if pairs:
            self._from_start(self._step.trace, eager)
        self._start.restore()
        return judged_run(captured, captured.bind(*self._arguments), eager.values, pairs)

    def _updated(self, name: str) -> Room | None:
        """How far the value of this name may be from eager's: kernels of updates round where loops do not."""
        learned = name.startswith(("parameter ", "optimizer's ")) and name not in self._start.may_stay
        return update_room(self._start.values.get(name)) if learned else None

    def _repeated(
        self, wanted: Mapping[str, Any], found: Mapping[str, Any], again: Callable[[], Mapping[str, Any]],
        room: Callable[[str], Room | None] = lambda _: None,
    ) -> Difference | None:  # fmt: skip
        """How values found differ from those `wanted`, but for roundings of those that differ in another run, too.

        Kernels that add in whatever order threads come do not repeat their bits. No run is needed where the difference
        is more than that.
        """
        if (difference := first_difference(wanted, found, room)) is None:
            return None
        if (plain := first_difference(wanted, found, self._rough)) is not None:
            return plain
        unsteady = set[str]()

        def room_now(name: str) -> Room | None:
            return self._rough(name) if name in unsteady else room(name)

        for number in range(_MORE):
            if difference is None or (number >= _RERUNS and not unsteady):
                break
            other = again()
            unsteady |= {name for name in wanted if first_difference({name: wanted[name]}, {name: other.get(name)})}
            difference = first_difference(wanted, found, room_now)
        return difference

    def _rough(self, name: str) -> Room:
        """How far a value may be from eager's that does not repeat its bits, or that another library computes."""
        return roughly(self._start.values.get(name))

    def _from_start(self, run: Run, mode: AbstractContextManager[Any] | None = None) -> Any:
        self._start.restore()
        with nullcontext() if mode is None else mode:
            return run(*self._arguments)

    def _values(self, run: Run, mode: AbstractContextManager[Any] | None = None) -> dict[str, Any]:
        return self._step.values_after(self._from_start(run, mode), self._start)


def _tells(step: Shadowed, result: Any, wanted: Mapping[str, Any], start: StepState, arguments: Sequence[Any]) -> bool:
    """Whether all results of eager's step, and the movements of what it learned, would show wrong numbers.

    Results in the memory of an argument are not asked, and of what it learned no vectors: the bias before a batch norm
    hardly ever moves, nor do scales of 1.
    """
    results = step.values(result)
    given = {_memory(leaf) for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)}
    for name, value in wanted.items():
        if not isinstance(value, Tensor):
            continue
        if name in results:
            asked = _memory(results[name]) not in given
        else:
            asked = _is_matrix(value) and name not in start.may_stay
        if asked and not tells(value, start.values.get(name)):
            return False
    return True


def _is_matrix(tensor: Tensor) -> bool:
    """Whether a tensor is neither a vector nor one that only its shape makes broadcast, as (1, 1, channels)."""
    return tensor.dim() == 2 or sum(size > 1 for size in tensor.shape) > 1


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


def _written(captured: Captured | None) -> list[Tensor]:
    """The tensors that a graph holds (not copies) and writes to, by whichever view of them."""
    if captured is None:
        return []
    values = (captured.held.get(slot) for slot in captured.written)
    return [value for value in values if isinstance(value, Tensor)]


def _writes_arguments(captured: Captured) -> bool:
    """Whether a graph writes to an argument of the call."""
    return any(captured.program.inputs[slot].role == "input" for slot in captured.written)


def leaves(result: Any) -> dict[str, Any]:
    """Return the leaves of a call's nested result, by the names "result 0", "result 1" and so on."""
    return {f"result {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(result))}


_KNOWN = frozenset(("aten", "prims", "mkl", "mkldnn", "threadcast"))
"""Libraries of operators that say whether they draw random numbers."""


def may_draw(captured: Captured | None) -> bool:
    """Return whether a step may draw from PyTorch's random generator; it may where its graph is not known.

    What is captured draws from none of Python's or NumPy's.
    """
    if captured is None or captured.random:
        return True
    targets = (node.target for node in captured.program.nodes)
    return any(isinstance(target, OpOverload) and target.namespace not in _KNOWN for target in targets)
