"""What an optimizer makes of a plan's own gradients, by which the plan's update is judged.

Adam divides a gradient by its size: of a number that is rounding alone it makes a whole step, with the sign of that
rounding. So a right plan's parameters may be far from eager's. But they are what eager's own update makes of the plan's
gradients, to a few roundings, and these are as near eager's as sums in another order are. What an optimizer adds up of
them shows them: Adam's mean and SGD's momentum, which are compared with eager's like all else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from threadcast.runtime.check.limits import HALF_PRECISION, is_real_or_complex, precise, sizes_of
from threadcast.runtime.check.sensitivity import Sensitivity
from threadcast.runtime.check.step_state import StepState, entry_name

_SUMS: Mapping[type[Optimizer], str] = {SGD: "momentum_buffer", Adam: "exp_avg", AdamW: "exp_avg"}
"""By optimizer whose update a plan can run: the state that adds up the gradient itself."""

_ROUNDINGS = 16
"""By how many roundings of a tensor's largest movement the recovered gradients may let its numbers differ in addition:
they are as exact as the larger one of eager's and the plan's."""


class _Updated(NamedTuple):
    """A parameter, how much more its gradient is in the plan than in eager, and the names of what is made of it."""

    parameter: Tensor
    more: Tensor
    made: frozenset[str]


def own_update(
    optimizer: Optimizer | None, start: StepState, eager: Mapping[str, Any], plan: Mapping[str, Any],
    step: Callable[[], Mapping[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return what eager's update makes of the gradients of the plan's step: parameters and state by name.

    `eager` and `plan` are the values after both steps; `step` runs eager's again from the same numbers, and returns its
    values. Sums of gradients are left out. It is empty in half precision, where these sums are rounded too much to show
    the gradient, and where there are none.
    """
    updated = [] if optimizer is None else list(_updated(optimizer, start, eager, plan))
    if optimizer is None or not updated:
        return {}

    def take_the_plans(*_: Any) -> None:
        for parameter, more, _made in updated:
            if (gradient := parameter.grad) is not None:
                parameter.grad = torch.empty_like(gradient).copy_(gradient.to(more.dtype) + more)

    hook = optimizer.register_step_pre_hook(take_the_plans)
    try:
        values = step()
    finally:
        hook.remove()
    made = frozenset().union(*(one.made for one in updated))
    return {name: value for name, value in values.items() if name in made}


def rooms(made: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Sensitivity]:
    """Return by how much each of these values may differ beside what any value may."""
    found = {}
    for name, value in made.items():
        if isinstance(value, Tensor) and is_real_or_complex(value) and value.numel():
            start = before.get(name)  # None of state that the first step makes
            moved = sizes_of(precise(value) - (precise(start) if isinstance(start, Tensor) else 0.0)).max()
            found[name] = Sensitivity(_ROUNDINGS * torch.finfo(value.dtype).eps * float(moved), value.numel())
    return found


def _updated(
    optimizer: Optimizer, start: StepState, eager: Mapping[str, Any], plan: Mapping[str, Any]
) -> Iterator[_Updated]:
    added_up = _SUMS.get(type(optimizer), "")
    for g, group in enumerate(optimizer.param_groups):
        share = (1 - group["betas"][0] if "betas" in group else 1 - group.get("dampening", 0.0)) if added_up else 0.0
        for i, parameter in enumerate(group["params"]):
            name = entry_name(added_up, f"{g}.{i}")
            wanted: Any = eager.get(name)
            found: Any = plan.get(name)
            if share == 0 or not _show_gradients(wanted, found):
                continue
            wide = torch.promote_types(wanted.dtype, torch.float64)
            more = (found.to(wide) - wanted.to(wide)) / (-share if group["maximize"] else share)
            more = torch.where(wanted == found, 0.0, more).nan_to_num(0.0, 0.0, 0.0)
            entries = {entry_name(entry, f"{g}.{i}") for entry in optimizer.state[parameter]} - {name}
            yield _Updated(parameter, more, frozenset({*entries, start.name_of(parameter) or name} - {name}))


def _show_gradients(wanted: Any, found: Any) -> bool:
    """Whether these sums of eager's and of the plan's are of one kind, and exact enough to show the gradients."""
    if not isinstance(wanted, Tensor) or not isinstance(found, Tensor) or not is_real_or_complex(wanted):
        return False
    alike = (wanted.shape, wanted.dtype, wanted.layout) == (found.shape, found.dtype, torch.strided)
    return alike and torch.finfo(wanted.dtype).eps < HALF_PRECISION
