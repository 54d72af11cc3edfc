"""Runs a step optimised and by eager PyTorch from the same state, and compares what both give."""

from __future__ import annotations

import logging
import warnings
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
from threadcast.core.errors import ThreadcastError, WrongResult
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.check.bits import Difference, Room, first_difference, roughly, update_room
from threadcast.runtime.check.judge import (
    BothOrders,
    EagerValues,
    calls_of,
    judged_run,
    substitutes,
)
from threadcast.runtime.check.step_state import ALL, Drawn, StepState, needed_bytes, too_large
from threadcast.runtime.check.telling import tells
from threadcast.runtime.engine.engine import Engine
from threadcast.threads.memory import free_bytes

_logger = logging.getLogger("threadcast")

Run = Callable[..., Any]

COPIES = 3
"""Copies of all that a step may change: as before the step, and as each of the two runs leaves it. While a graph is
judged there is one more, for which the other half of the free memory is left."""
_RERUNS, _MORE = 3, 8
"""Times a step is run again at most to see whether its values repeat their bits, and where some of them do not."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """A step's model and optimizer, and how eager PyTorch runs the step.

    `eager` runs the whole step. `trace` only calls the operators of the forward and backward pass, in the order in
    which they were captured and in the model's current format, and changes no parameter. `values` returns the parts of
    a step's result by name.
    """

    eager: Run
    trace: Run
    model: nn.Module | None
    optimizer: Optimizer | None
    values: Callable[[Any], dict[str, Any]]

    def state(self, arguments: Any, captured: Captured | None) -> StepState:
        """Return copies of all that the step may change: the model's own state and tensors that the graph writes to."""
        return StepState(
            self.model, self.optimizer, arguments, written=_written(captured), drawn=may_be_drawn(captured),
            reads_arguments=captured is not None and not _writes_arguments(captured),
        )  # fmt: skip

    def too_large(self, arguments: Any, captured: Captured | None) -> str | None:
        """Return why memory is too small for the copies of `shadow_step` and `checked_step`; None if it is not."""
        needed = needed_bytes(self.model, self.optimizer, arguments, _written(captured))
        return too_large(COPIES * needed, free_bytes())

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


class NotComparable(ThreadcastError):
    """Memory is too small to compare a step; nothing is known of its numbers. The message says what it would take."""


def shadow_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, ran: Callable[[], Ran | None],
    in_order: Callable[[], Run | None] = lambda: None, by_pytorch: Callable[[], bool] = lambda: False,
) -> Any:  # fmt: skip
    """Run an optimised step, and the same step by eager PyTorch; return the result of the optimised step.

    `run` runs the optimised step, `captured` is its graph. `ran`, called after the step, returns the plan that ran it,
    and `in_order`, if it ran in channels last, what runs a step so by eager PyTorch. `by_pytorch` says whether the
    step was eager PyTorch's own: nothing is to be verified then, and its kernels need not repeat their bits.
    Model, optimizer and random state are left as the optimised step leaves them. WrongResult names the value that
    differs, and the first operator whose result does. Takes `COPIES` times the memory of a `StepState`; where that
    operator has to be found, also memory for all intermediate results.

    What neither a plan nor eager PyTorch ran has another library's roundings, and is compared roughly. Where memory is
    too small to find out whether a difference is a rounding, a warning says so.
    """
    start = step.state(arguments, captured)
    result = run(*arguments)
    if by_pytorch():
        return result
    by, ordered = ran(), in_order()
    found = step.copied(result)
    end = step.state(arguments, captured)
    found.update(end.values)
    try:
        start.restore()
        wanted = step.values_after(step.eager(*arguments), start)
        comparison = _Comparison(step, start, arguments, wanted)
        roughly = by is None and ordered is None
        difference = comparison.roughly(found) if roughly else comparison.of(by, found, ordered, Judged())
        if difference is not None:
            said = f"an optimised step did not give what PyTorch gives: {difference}"
            raise WrongResult(said + ("" if by is None else comparison.first_operator(by)))
    except NotComparable as error:
        warnings.warn(f"threadcast does not verify this call: {error}", stacklevel=2)
    finally:
        end.restore()
    return result


class Checked(NamedTuple):
    """Eager's result of a step, and how another run's results differ from it."""

    result: Any
    difference: Difference | None
    """The first value that differs; None where all agree."""
    tells: bool
    """Whether what eager's step gave would show wrong numbers, as zeros would not."""
    raised: bool = False
    """Whether the difference is that the other run has raised an exception."""
    comparable: bool = True
    """False where memory was too small to tell; the difference then says so."""


def checked_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, *,
    ran: Callable[[], Ran | None] = lambda: None, in_order: Run | None = None, judged: Judged | None = None,
) -> Checked:  # fmt: skip
    """Run a step by eager PyTorch and by `run`, both from the same state, and compare the results.

    `ran`, called after the step, returns the plan that ran it; without one the results must have eager's bits.
    `in_order` runs a step by eager PyTorch in channels last, if `run` has that. What is `judged` need not be judged
    again. An exception of `run` counts as a difference. Model, optimizer and random state are left as eager leaves
    them. Takes `COPIES` times the memory of a `StepState`.
    """
    judged = Judged() if judged is None else judged
    start = step.state(arguments, captured)
    result = step.eager(*arguments)
    wanted = step.copied(result)
    end = step.state(arguments, captured)
    wanted.update(end.values)
    if (name := start.written_besides()) is not None:
        return Checked(result, Difference(name, "eager writes to it, the plan does not"), True)
    try:
        start.restore()
        with Failure() as failure:
            found = step.values_after(run(*arguments), start)
        if failure.error is not None:  # eager has run, so whatever this raises is the plan's own
            return Checked(result, Difference("the step", str(failure)), True, raised=True)
        telling, by = _tells(step, result, wanted, start, arguments), ran()
        comparison = _Comparison(step, start, arguments, wanted)
        difference: Difference | None = None
        with Failure() as failure:  # the caller's own step has succeeded
            difference = comparison.of(by, found, in_order, judged, telling=telling)
        if isinstance(failure.error, NotComparable):
            unknown = Difference("its graph", f"it cannot be compared: {failure.error}")
            return Checked(result, unknown, telling, comparable=False)
        if failure.error is not None:
            difference = Difference("its graph", str(failure))
        return Checked(result, difference, telling)
    finally:
        end.restore()


class _Comparison:
    """Compares what runs a step with eager PyTorch's values `wanted` of it, each from the state `start`."""

    def __init__(self, step: Shadowed, start: StepState, arguments: Sequence[Any], wanted: Mapping[str, Any]) -> None:
        self._step, self._start, self._arguments, self._wanted = step, start, arguments, wanted

    def of(
        self, by: Ran | None, found: Mapping[str, Any], in_order: Run | None, judged: Judged, *, telling: bool = True
    ) -> Difference | None:
        """How values found differ from eager's, which `by` has run, or eager itself; None at once where none do.

        `in_order` runs eager's step in channels last, if it was run so. What is `judged` is not judged again; what a
        step that is `telling` shows to be right is noted there.
        """
        if first_difference(self._wanted, found) is None:
            return None
        if in_order is not None and not judged.order:
            if (difference := self._in_both_orders(in_order)) is not None:
                return difference
            judged.order = telling
        run = self._step.eager if in_order is None else in_order
        if by is None:
            wanted = self._wanted if in_order is None else self._values(run)
            return self._repeated(wanted, found, partial(self._values, run))
        if by.captured not in judged.graphs:
            difference = self._of_graph(by.captured, self._wanted if in_order is None else self._values(run), run)
            if difference is not None:
                return difference
            if telling:
                judged.graphs.add(by.captured)
        threads = [by.plan.by_id()[op].threads for op in by.captured.graph.ids]
        again = partial(self._values, partial(by.captured.run, threads=threads))
        return self._repeated(again(), found, again)

    def roughly(self, found: Mapping[str, Any]) -> Difference | None:
        """How values found differ from eager's by more than another library's roundings."""
        return first_difference(self._wanted, found, self._rough)

    def _in_both_orders(self, in_order: Run) -> Difference | None:
        """How eager's step in channels last differs from that in the order as given, operator by operator."""
        found = self._values(in_order, judge := BothOrders())
        return judge.difference or self.roughly(found)

    def first_operator(self, by: Ran) -> str:
        """Return which operator of a plan's graph differs first from PyTorch's, in words."""
        try:
            self._from_start(self._step.trace, eager := EagerValues())
            self._start.restore()
            pairs = {**calls_of(by.captured), **substitutes(by.captured)}
            found = judged_run(by.captured, by.captured.bind(*self._arguments), eager.values, pairs)[1]
        except (ThreadcastError, RuntimeError) as error:
            return f"; which operator differs could not be found: {error}"
        return f"; {found or 'what each operator returns is right: the plan mixes up values, or writes wrong ones'}"

    def _of_graph(self, captured: Captured, wanted: Mapping[str, Any], eager_run: Run) -> Difference | None:
        """How a graph, run op after op with eager's own results of what stands for an operator, differs from eager.

        These are the values `wanted`, of `eager_run`. NotComparable where memory is too small for those results.
        """
        pairs = substitutes(captured)
        copied = sum(spec.size_bytes for at in pairs for spec in captured.graph.ops[at].outputs)
        if (reason := too_large(copied, free_bytes())) is not None:
            raise NotComparable(reason)
        names = {name for one in pairs.values() for _, name, _ in one}
        eager = EagerValues(names)
        if names:
            self._from_start(self._step.trace, eager)
        wrong = []

        def run(*arguments: Any) -> Any:
            result, found = judged_run(captured, captured.bind(*arguments), eager.values, pairs)
            wrong.append(found)
            return result

        self._start.restore()
        result = run(*self._arguments)
        if wrong[0] is not None:
            return Difference(wrong[0].op, str(wrong[0]))
        found = self._step.values_after(result, self._start)
        return self._repeated(wanted, found, partial(self._values, eager_run), self._updated)

    def _updated(self, name: str) -> Room | None:
        """How far the value of this name may be from eager's: kernels of updates round where loops do not."""
        stays = self._step.optimizer is None or name in self._start.may_stay or name not in self._learned
        return None if stays else update_room(self._start.values.get(name))

    @property
    def _learned(self) -> set[str]:
        return {name for name in self._wanted if name.startswith(("parameter ", "optimizer's "))}

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


def may_be_drawn(captured: Captured | None) -> Drawn:
    """Return which generators a step may draw from; any where its graph is not known.

    What is captured draws from none of Python's or NumPy's.
    """
    if captured is None:
        return ALL
    targets = (node.target for node in captured.program.nodes)
    others = any(isinstance(target, OpOverload) and target.namespace not in _KNOWN for target in targets)
    return Drawn(pytorch=captured.random or others, python=False)
