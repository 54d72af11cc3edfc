"""A network with example data and a loss: what is captured, timed and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from threadcast.core.arguments import check_whole
from threadcast.core.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn

Loss = Callable[[Any, "Tensor"], "Tensor"]
"""`loss(model(*inputs), target)` is a scalar tensor."""

Parts = tuple["nn.Module", tuple["Tensor", ...], "Tensor", Loss]
"""What the built-in networks' builders return: model, inputs, target, loss."""

ALLOWED_FORMS = "(model, inputs), (model, inputs, target, loss) or a Workload"


@dataclass(frozen=True, slots=True)
class Workload:
    """One network at one size: `model(*inputs)` is inference, `loss(model(*inputs), target)` starts training.

    `batch` is the number of examples in `inputs`. `target` and `loss` are both None for a network that is
    for inference only. The model is in the mode (training or evaluation) in which its builder left it: the
    built-in ones are in training mode.
    """

    name: str
    size: str
    batch: int
    model: nn.Module
    inputs: tuple[Tensor, ...]
    target: Tensor | None = None
    loss: Loss | None = None

    def __post_init__(self) -> None:
        from torch import Tensor, nn

        if not isinstance(self.model, nn.Module):
            raise InvalidInput(f"model is {_kind(self.model)}; give a torch.nn.Module")
        if not isinstance(self.inputs, tuple) or not self.inputs:
            raise InvalidInput(f"inputs is {_kind(self.inputs)}; give a tuple of at least one torch.Tensor")
        for position, value in enumerate(self.inputs):
            if not isinstance(value, Tensor):
                raise InvalidInput(f"inputs[{position}] is {_kind(value)}; every input must be a torch.Tensor")
        if (self.target is None) != (self.loss is None):
            raise InvalidInput("target and loss belong together; give both to train, neither for inference only")
        if self.target is not None and not isinstance(self.target, Tensor):
            raise InvalidInput(f"target is {_kind(self.target)}; give a torch.Tensor")
        if self.loss is not None and not callable(self.loss):
            raise InvalidInput(f"loss is {_kind(self.loss)}; give a callable loss(output, target)")
        check_whole("batch", self.batch)


def as_workload(returned: object, *, source: str, name: str, size: str, batch: int | None = None) -> Workload:
    """The Workload of what a network function returned in any of `ALLOWED_FORMS`.

    A lone tensor or a list is accepted for the tuple of inputs, and a plain callable for a model without
    parameters. Where `batch` is None it is the first side of the first input. InvalidInput for anything else that
    the function returned; its message calls the function `source`.
    """
    from torch import Tensor, nn

    if isinstance(returned, Workload):
        return returned
    if isinstance(returned, nn.Module):
        raise InvalidInput(f"{source} returned a model without inputs; return {ALLOWED_FORMS}")
    if not isinstance(returned, tuple):
        raise InvalidInput(f"{source} returned {_kind(returned)}; return {ALLOWED_FORMS}")
    if len(returned) not in (2, 4):
        raise InvalidInput(f"{source} returned a tuple of {len(returned)}; return {ALLOWED_FORMS}")
    model, inputs, target, loss = returned if len(returned) == 4 else (*returned, None, None)
    if isinstance(model, type):
        raise InvalidInput(f"{source} returned the class {model.__name__}; return an instance of it")
    if not isinstance(model, nn.Module) and callable(model):
        from threadcast.networks.plain_callable import PlainCallable

        model = PlainCallable(model)
    inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs) if isinstance(inputs, list) else inputs
    if batch is None and isinstance(inputs, tuple) and inputs and isinstance(inputs[0], Tensor):
        batch = max(1, inputs[0].shape[0]) if inputs[0].ndim else 1
    try:
        return Workload(name, size, 1 if batch is None else batch, model, inputs, target, loss)
    except InvalidInput as error:
        raise InvalidInput(f"{source} returned {ALLOWED_FORMS.split(' or ')[0]}, but {error}") from None


def _kind(value: object) -> str:
    """`value`'s type as a reader calls it, with the value where that is short."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"{value!r}"[:60]
    return f"a {type(value).__name__}"
