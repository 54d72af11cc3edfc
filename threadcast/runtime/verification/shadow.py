"""Shadow steps: an optimised step run beside eager's on copies of the same state, and both compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.capture import Captured
from threadcast.capture.dependencies import writes
from threadcast.core.errors import ThreadcastError, WrongResult
from threadcast.runtime.engines.engine import Engine
from threadcast.runtime.verification.differences import NUDGES, Difference, first_difference, sensitivities
from threadcast.runtime.verification.first_operator import EagerValues, first_wrong_call, first_wrong_run
from threadcast.runtime.verification.step_state import StepState, free_bytes, needed_bytes, too_large

Run = Callable[..., Any]

COPIES = 3
"""Of all that a step may change: as it was before the step, and as each of two ways leaves it."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadowed:
    """What a step is of, and how it is run by eager PyTorch.

    `eager` is the whole step as PyTorch does it; `trace` only calls the operators of forward and backward, in the order
    in which they were captured, and changes no parameter. `values` names what a step returns.
    """

    eager: Run
    trace: Run
    model: nn.Module | None
    optimizer: Optimizer | None
    values: Callable[[Any], dict[str, Any]]

    def state(self, arguments: Any, captured: Captured | None) -> StepState:
        """Copies of all that the step may change, by the model's own parts and by what the graph writes."""
        return StepState(self.model, self.optimizer, arguments, written=_written(captured))

    def too_large(self, arguments: Any, captured: Captured | None) -> str | None:
        """Why there is no memory for the copies that `shadow_step` and `checked_step` make; None where there is."""
        needed = needed_bytes(self.model, self.optimizer, arguments, _written(captured))
        return too_large(COPIES * needed, free_bytes())

    def sensitivity(self, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any]) -> dict[str, float]:
        """How much eager's own results change when all numbers that it starts from change by one rounding.

        Runs eager's step `NUDGES` times more, from `start`, and does not go back to it afterwards.
        """
        changed = []
        for seed in range(NUDGES):
            start.nudge(seed)
            changed.append({**self.copied(self.eager(*arguments)), **start.now()})
        return sensitivities(wanted, *changed)

    def copied(self, result: Any) -> dict[str, Any]:
        """Copies of what a step returned, by name."""
        found = self.values(result).items()
        return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in found}


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What ran an optimised step: its graph and what makes an engine of the same plan."""

    captured: Captured
    make_engine: Callable[[Captured], Engine]


def shadow_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None, ran: Callable[[], Ran | None]
) -> Any:
    """Run one optimised step and the same step by eager PyTorch, and return the optimised one's result.

    `captured` says what the step writes, `ran` afterwards which plan ran it. Model, optimizer and random state are left
    as the optimised step leaves them. WrongResult names what differs beyond rounding, and the first operator whose
    result does. Takes `COPIES` times the memory of a `StepState`; for all intermediate results too where an operator
    has to be found.
    """
    start = step.state(arguments, captured)
    result = run(*arguments)
    by = ran()
    found = step.copied(result)
    end = step.state(arguments, captured)
    found.update(end.values)
    try:
        start.restore()
        wanted = {**step.copied(step.eager(*arguments)), **start.now()}
        difference = first_difference(wanted, found, before=start.values)
        if difference is not None:
            allowed = step.sensitivity(start, arguments, wanted)
            difference = first_difference(wanted, found, before=start.values, sensitivity=allowed)
        if difference is not None:
            raise WrongResult(_report(step, difference, start, arguments, wanted, by))
    finally:
        end.restore()
    return result


def checked_step(
    step: Shadowed, run: Run, arguments: Sequence[Any], captured: Captured | None
) -> tuple[Any, Difference | None]:
    """Run one step by eager PyTorch, and the same step by `run` on copies of the same state.

    Returns eager's result, from which the caller goes on, and the first value that `run` gave otherwise: None where all
    agree up to rounding. What `run` raises is a difference too. Takes `COPIES` times the memory of a `StepState`.
    """
    start = step.state(arguments, captured)
    result = step.eager(*arguments)
    wanted = step.copied(result)
    end = step.state(arguments, captured)
    wanted.update(end.values)
    if (name := start.written_besides()) is not None:
        return result, Difference(name, "eager writes to it, the plan does not")
    try:
        start.restore()
        try:
            found = {**step.copied(run(*arguments)), **start.now()}
        except Exception as error:  # noqa: BLE001 - eager has run, so whatever this raises is the plan's own
            return result, Difference("the step", f"{type(error).__name__}: {error}")
        difference = first_difference(wanted, found, before=start.values)
        if difference is not None:
            allowed = step.sensitivity(start, arguments, wanted)
            difference = first_difference(wanted, found, before=start.values, sensitivity=allowed)
        return result, difference
    finally:
        end.restore()


def _report(
    step: Shadowed, difference: Difference, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any],
    ran: Ran | None,
) -> str:  # fmt: skip
    said = f"an optimised step did not give what PyTorch gives: {difference}"
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


def _written(captured: Captured | None) -> list[Tensor]:
    """The live tensors that a graph writes to."""
    if captured is None:
        return []
    slots = dict.fromkeys(ref.slot for node in captured.program.nodes for ref in writes(node))
    values = (captured.held.get(slot) for slot in slots)
    return [value for value in values if isinstance(value, Tensor)]


def leaves(result: Any) -> dict[str, Any]:
    """The leaves of what a call returned, by number."""
    return {f"result {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(result))}
