"""Shadow steps: an optimised step run beside eager's on copies of the same state, and both compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from threadcast.capture.capture import Captured
from threadcast.core.errors import ThreadcastError, WrongResult
from threadcast.runtime.engine import Engine
from threadcast.runtime.verification.differences import NUDGES, Difference, first_difference, nudged, sensitivities
from threadcast.runtime.verification.first_operator import EagerValues, first_wrong_call, first_wrong_run
from threadcast.runtime.verification.step_state import StepState

Run = Callable[..., Any]


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

    def state(self, arguments: Any) -> StepState:
        """Copies of all that the step may change."""
        return StepState(self.model, self.optimizer, arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What ran an optimised step: its graph and what makes an engine of the same plan."""

    captured: Captured
    make_engine: Callable[[Captured], Engine]


def shadow_step(step: Shadowed, run: Run, arguments: Sequence[Any], ran: Callable[[], Ran | None]) -> Any:
    """Run one optimised step and the same step by eager PyTorch, and return the optimised one's result.

    Model, optimizer and random state are left as the optimised step leaves them. WrongResult names what differs beyond
    rounding, and the first operator whose result does. Takes memory for four copies of parameters, buffers and
    optimizer state; for all intermediate results too where an operator has to be found.
    """
    start = step.state(arguments)
    result = run(*arguments)
    found = {**_copies(step.values(result)), **start.now()}
    end = step.state(arguments)
    try:
        start.restore()
        wanted = {**_copies(step.values(step.eager(*arguments))), **start.now()}
        difference = first_difference(wanted, found, before=start.values)
        if difference is not None:
            allowed = eager_sensitivity(step, start, arguments, wanted)
            difference = first_difference(wanted, found, before=start.values, sensitivity=allowed)
        if difference is not None:
            raise WrongResult(_report(step, difference, start, arguments, wanted, ran()))
    finally:
        end.restore()
    return result


def eager_sensitivity(
    step: Shadowed, start: StepState, arguments: Sequence[Any], wanted: dict[str, Any]
) -> dict[str, float]:
    """How much eager's own results change when all numbers that it starts from change by one rounding.

    This runs eager's step `NUDGES` times more, from `start`, to which it does not go back afterwards.
    """
    changed = []
    for seed in range(NUDGES):
        start.restore()
        tensors = {name: value for name, value in start.values.items() if isinstance(value, Tensor)}
        start.change({name: nudged(value, seed=seed) for name, value in tensors.items()})
        changed.append({**_copies(step.values(step.eager(*arguments))), **start.now()})
    return sensitivities(wanted, *changed)


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


def _copies(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in values.items()}


def leaves(result: Any) -> dict[str, Any]:
    """The leaves of what a call returned, by number."""
    return {f"result {i}": leaf for i, leaf in enumerate(pytree.tree_leaves(result))}
