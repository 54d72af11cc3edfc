"""Shadow steps: the same step is run optimised and by eager PyTorch from the same state, and both are compared."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import ThreadcastError, WrongResult
from threadcast.core.signal_handlers import Failure
from threadcast.runtime.check.chance import Pair, is_chance
from threadcast.runtime.check.differences import Difference, first_beyond_rounding, first_difference
from threadcast.runtime.check.first_operator import EagerValues, first_wrong_call, first_wrong_run
from threadcast.runtime.check.jumps import has_jumps
from threadcast.runtime.check.own_update import own_update, rooms
from threadcast.runtime.check.pointing import pointing_alike
from threadcast.runtime.check.sensitivity import (
    REORDERED,
    EagerRun,
    Enough,
    Nudge,
    Sensitivity,
    nudges_for,
    other_threads,
    sensitivities,
)
from threadcast.runtime.check.step_state import ALL, Drawn, StepState, needed_bytes, too_large
from threadcast.runtime.check.telling import tells
from threadcast.runtime.engine.engine import Engine
from threadcast.threads.memory import free_bytes

_logger = logging.getLogger("threadcast")

Run = Callable[..., Any]

_AGAIN = 100
"""The first seed of steps that show whether a difference is chance."""
COPIES = 3
"""Copies of all that a step may change: as before the step, and as each of the two runs leaves it. While rounding is
looked at there are two or three more, for which the other half of the free memory is left."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """A step's model and optimizer, and how eager PyTorch runs the step.

    `eager` runs the whole step. `trace` only calls the operators of the forward and backward pass, in the order in
    which they were captured, and changes no parameter. `values` returns the parts of a step's result by name.
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

    def begin(
        self, start: StepState, arguments: Sequence[Any], *, seed: int, roundings: int
    ) -> tuple[dict[str, Tensor], Sequence[Any]]:
        """Set all back to `start` with all numbers changed by so many roundings, at random by `seed`.

        Returns the changed numbers by name, and the arguments of a step with them.
        """
        changed = start.nudge(seed, roundings)
        return changed, start.with_changed(arguments, changed)

    def values_after(self, result: Any, start: StepState, asked: Container[str] | None = None) -> dict[str, Any]:
        """Return copies of all values of a step that gave `result`, by name; with `asked`, of these only."""
        found = {name: value for name, value in self.copied(result).items() if asked is None or name in asked}
        return {**found, **start.now(asked)}

    def sensitivity(
        self, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any], names: Sequence[str],
        enough: Enough = lambda *_: False,
    ) -> dict[str, Sensitivity]:  # fmt: skip
        """Return how sensitive the values `names` of eager's own result `wanted` are to rounding.

        Runs eager's step some more times, each from `start` with all numbers changed by some roundings (`nudges_for`),
        and once from `start` itself with another number of threads (see `sensitivities`); no further once that is
        `enough` of all values. Steps that raise, as on a probability above 1, do not count. Does not restore the state
        afterwards.
        """
        asked = {name: wanted[name] for name in names if name in wanted}
        runs = self._eager_runs(start, arguments, wanted, asked)
        return sensitivities(asked, runs, before=start.values, enough=enough)

    def _eager_runs(
        self, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any], names: Container[str]
    ) -> Iterator[EagerRun]:
        """Further runs of eager's step, each when it is asked for, with the values `names`."""

        def ran(inputs: Sequence[Any]) -> dict[str, Any] | None:
            try:
                return self.values_after(self.eager(*inputs), start, names)
            except Exception as error:  # noqa: BLE001 - the caller's own step has succeeded; only another one raises
                _logger.debug("a step on numbers changed by some roundings raises: %s", error)
                return None

        for seed, nudge in enumerate(nudges_for((*start.values.values(), *arguments, *wanted.values()))):
            begun, inputs = self.begin(start, arguments, seed=seed, roundings=nudge.roundings)
            if (changed := ran(inputs)) is not None:
                yield EagerRun(nudge, changed, begun)
            del begun, inputs, changed
        start.restore()
        with other_threads():
            reordered = ran(arguments)
        if reordered is not None:
            yield EagerRun(Nudge(1, REORDERED), reordered, start.values)

    def copied(self, result: Any) -> dict[str, Any]:
        """Return copies of the parts of a step's result, by name."""
        found = self.values(result).items()
        return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in found}


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What ran an optimised step: its graph, and a function that makes an engine with the same plan."""

    captured: Captured
    make_engine: Callable[[Captured], Engine]


def shadow_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, ran: Callable[[], Ran | None]
) -> Any:
    """Run an optimised step, and the same step by eager PyTorch; return the result of the optimised step.

    `run` runs the optimised step, `captured` is its graph, and `ran`, called after the step, returns what ran it.
    Model, optimizer and random state are left as the optimised step leaves them. WrongResult names the value that
    differs beyond rounding, and the first operator whose result does. Takes `COPIES` times the memory of a `StepState`;
    where that operator has to be found, also memory for all intermediate results.
    """
    start = step.state(arguments, captured)
    result = run(*arguments)
    by = ran()
    found = step.copied(result)
    end = step.state(arguments, captured)
    found.update(end.values)
    try:
        start.restore()
        wanted = step.values_after(step.eager(*arguments), start)
        sensitivity = partial(step.sensitivity, start, arguments, wanted)
        jumps = captured is not None and has_jumps(captured)
        _take_indices(captured, start, arguments, wanted, found)
        difference, left = _judged_update(step, start, start.values, arguments, wanted, found)
        if difference is None:
            difference = first_beyond_rounding(left.eager, left.plan, sensitivity, before=start.values, jumps=jumps)
        if difference is not None:
            raise WrongResult(_report(step, difference, start, arguments, wanted, by))
    finally:
        end.restore()
    return result


class Checked(NamedTuple):
    """Eager's result of a step, and how far another run's results differ from it."""

    result: Any
    difference: Difference | None
    """The first value that differs beyond rounding; None where all agree."""
    tells: bool
    """Whether what eager's step gave would show wrong numbers, as zeros would not."""
    raised: bool = False
    """Whether the difference is that the other run has raised an exception."""


def checked_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, *, jumps: bool | None = None
) -> Checked:
    """Run a step by eager PyTorch and by `run`, both from the same state, and compare the results.

    An exception of `run` counts as a difference. `jumps`: whether the step has operators that jump (`jumps.py`); by
    default whether its graph has. Model, optimizer and random state are left as eager leaves them. Takes `COPIES` times
    the memory of a `StepState`.
    """
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
        if jumps is None:
            jumps = captured is not None and has_jumps(captured)
        _take_indices(captured, start, arguments, wanted, found)
        difference = _difference(step, run, start, arguments, wanted, found, jumps=jumps)
        return Checked(result, difference, _tells(step.values(result), wanted, start, arguments))
    finally:
        end.restore()


def _difference(
    step: Shadowed, again: Run, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any],
    found: dict[str, Any], *, jumps: bool,
) -> Difference | None:  # fmt: skip
    """How `found`, the values of a step, differ from eager's `wanted`, if not by chance.

    What may be chance is compared again, in steps by `again` (`chance.py`). Does not restore the state afterwards.
    """
    difference, first = _judged_update(step, start, start.values, arguments, wanted, found)
    if difference is not None:
        return difference
    known: dict[str, Sensitivity] = {}

    def sensitivity(names: Sequence[str], enough: Enough) -> dict[str, Sensitivity]:
        known.update(step.sensitivity(start, arguments, wanted, names, enough))
        return known

    difference = first_beyond_rounding(first.eager, first.plan, sensitivity, before=start.values, jumps=jumps)
    if difference is None or not difference.may_be_chance:
        return difference
    try:
        others = _changed_steps(step, again, start, arguments, wanted)
        ask = partial(step.sensitivity, start, arguments, wanted)
        if _repeats(step, again, start, {}, arguments, found) and is_chance(first, others, known, ask):
            _logger.info("a step differs from PyTorch's by chance: %s", difference)
            return None
    except Exception as error:  # noqa: BLE001 - the caller's own step has succeeded; only another one raises
        _logger.debug("a step on numbers changed by some roundings raises: %s", error)
    return difference


def _judged_update(
    step: Shadowed, start: StepState, before: Mapping[str, Any], arguments: Sequence[Any], wanted: dict[str, Any],
    found: dict[str, Any],
) -> tuple[Difference | None, Pair]:  # fmt: skip
    """Return how an update differs from what eager's makes of the plan's own gradients, and what is left to judge.

    That is all but these values (`own_update`). Looked at only where anything differs; `before` are the values before
    the step, those of `start` or changed ones. Does not restore the state afterwards.
    """
    if step.optimizer is None or first_difference(wanted, found, before=before) is None:
        return None, Pair(before, wanted, found)

    def again() -> dict[str, Any]:
        start.restore(before)
        return step.values_after(step.eager(*arguments), start)

    made = own_update(step.optimizer, start, wanted, found, again)
    plan = {name: found[name] for name in made if name in found}
    difference = first_difference(made, plan, before=before, sensitivity=rooms(made, before))
    eager, plan = ({name: one for name, one in values.items() if name not in made} for values in (wanted, found))
    return difference, Pair(before, eager, plan)


def _take_indices(
    captured: Captured | None, start: StepState, arguments: Sequence[Any], wanted: Mapping[str, Any],
    found: dict[str, Any],
) -> None:  # fmt: skip
    """Put eager's indices in place of those that were `found` and point at equal values (`pointing.py`)."""

    def begin() -> Sequence[Any]:
        assert captured is not None
        start.restore()
        return captured.bind(*arguments)

    found.update((name, wanted[name]) for name in pointing_alike(captured, begin, wanted, found))


def _changed_steps(
    step: Shadowed, again: Run, start: StepState, arguments: Sequence[Any], wanted: Mapping[str, Any]
) -> Iterator[Pair]:
    """Further steps by eager and by `again`, each with all numbers changed by some roundings, when it is asked for.

    Ends where no number is changed, and where `again` does not give the same results twice or updates otherwise.
    """
    roundings = nudges_for((*start.values.values(), *arguments, *wanted.values()))[-1].roundings
    for seed in itertools.count(_AGAIN):
        begun, inputs = step.begin(start, arguments, seed=seed, roundings=roundings)
        if not _changed(begun, start.values) and not _changed(dict(enumerate(inputs)), dict(enumerate(arguments))):
            return
        found = step.values_after(again(*inputs), start)
        if not _repeats(step, again, start, begun, inputs, found):
            return
        start.restore(begun)
        eager = step.values_after(step.eager(*inputs), start)
        difference, left = _judged_update(step, start, begun, inputs, eager, found)
        if difference is not None:
            return
        yield left
        del begun, inputs, eager, found, left


def _repeats(
    step: Shadowed, again: Run, start: StepState, changed: Mapping[str, Tensor], inputs: Sequence[Any],
    found: Mapping[str, Any],
) -> bool:  # fmt: skip
    """Whether `again` gives what it `found` once more from the same numbers, `changed` ones of `start`.

    A race would not, nor what reads memory that a run with other numbers has left.
    """
    start.restore(changed)
    same = step.values_after(again(*inputs), start)
    return first_beyond_rounding(found, same, lambda *_: {}, before={**start.values, **changed}) is None


def _changed(found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> bool:
    """Whether a tensor of `found` has other numbers than in `wanted`."""
    pairs = ((value, wanted[name]) for name, value in found.items() if isinstance(value, Tensor))
    return any(one is not other and not torch.equal(one, other) for one, other in pairs)


def _report(
    step: Shadowed, difference: Difference, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any],
    ran: Ran | None,
) -> str:  # fmt: skip
    said = f"an optimised step did not give what PyTorch gives: {difference}"
    if difference.may_be_chance:
        said += (
            "; that is little, and may be chance where a number near zero has another sign before a ReLU or the like"
        )
    if ran is None:
        return f"{said}; it was not run by a plan"
    captured = ran.captured

    def begin() -> list[Any]:
        start.restore()
        return captured.bind(*arguments)

    try:
        start.restore()
        with EagerValues() as eager:
            step.trace(*arguments)
        inputs = begin()
        names = {slot: start.name_of(value) for slot, value in enumerate(inputs) if isinstance(value, Tensor)}
        after = {slot: wanted[name] for slot, name in names.items() if name in wanted}
        before = {slot: start.values[name] for slot, name in names.items() if name in start.values}
        found = first_wrong_call(captured, inputs, eager.values, after, before)
        found = found or first_wrong_run(captured, begin, ran.make_engine)
    except (ThreadcastError, RuntimeError) as error:
        return f"{said}; which operator differs could not be found: {error}"
    return f"{said}; {found or 'each operator by itself gives what it should: values are mixed up in memory'}"


def _tells(results: Mapping[str, Any], wanted: Mapping[str, Any], start: StepState, arguments: Sequence[Any]) -> bool:
    """Whether all results of eager's step, and the movements of what it learned, would show wrong numbers.

    Results in the memory of an argument are not asked, and of what it learned no vectors: the bias before a batch norm
    hardly ever moves, nor do scales of 1.
    """
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
