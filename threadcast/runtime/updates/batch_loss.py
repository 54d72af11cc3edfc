"""The loss of one batch, as an optimised training step computes and differentiates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from threadcast.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class BatchLoss:
    """Computes the loss of a batch by `loss(model(*inputs, **named), target)`; without `loss` the model returns it.

    `parts` is the number of batches whose gradients are added up for one update; each counts by its share of so many.
    """

    loss: Callable[[Any, Any], Tensor] | None
    parts: int = 1

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], scale: Tensor | None = None
    ) -> tuple[dict[str, Any], Tensor]:
        """Return the loss by the name "loss", and what is differentiated: its share, times the scale of a GradScaler.

        InvalidInput where the arguments lack inputs or target.
        """
        return self.of(lambda args, kwargs: model(*args, **kwargs), args, kwargs, scale)

    def of(
        self, call: Callable[[tuple[Any, ...], dict[str, Any]], Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        scale: Tensor | None = None,
    ) -> tuple[dict[str, Any], Tensor]:  # fmt: skip
        """As a call does, for a model that is called with a tuple of positional and a dictionary of named arguments."""
        if self.loss is None:
            value = loss_in(call(args, kwargs))
        else:
            if not args:
                raise InvalidInput("the target is missing: it is the last positional argument, after the inputs")
            value = self.loss(call(args[:-1], kwargs), args[-1])
        part = value if self.parts == 1 else value / self.parts
        return {"loss": value}, part if scale is None else part * scale

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The callables besides the model that are called."""
        return () if self.loss is None else (self.loss,)


def loss_in(outputs: Any) -> Tensor:
    """Return the loss in what a model returns: that tensor itself, its attribute or entry `loss`, or its first part.

    These are what models of Hugging Face's `transformers` return when they are given labels. InvalidInput for others.
    """
    found = outputs
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    elif isinstance(outputs, tuple | list) and not hasattr(outputs, "loss"):
        found = outputs[0] if outputs else None
    elif not isinstance(outputs, Tensor):
        found = getattr(outputs, "loss", None)
    if isinstance(found, Tensor):
        return found
    raise InvalidInput(
        f"the model returned a {type(outputs).__name__} in which there is no loss; pass a function as `loss`, or let "
        "the model return a tensor, or an object or dictionary with `loss`"
    )
