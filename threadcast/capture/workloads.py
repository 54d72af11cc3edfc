"""Capturing a network of `threadcast.networks` for inference or for a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from threadcast.core.errors import InvalidInput
from threadcast.networks import Workload

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from threadcast.capture.graph.captured import Captured

Mode = Literal["forward", "training"]
OptimizerName = Literal["sgd", "adam"]

_LEARNING_RATES = {"sgd": 0.01, "adam": 1e-3}
"""Usual learning rates; they are inputs of the captured step and do not change what it costs."""


def capture_workload(workload: Workload, mode: Mode | None = None, *, optimizer: OptimizerName = "sgd") -> Captured:
    """Capture the workload's inference or its training step (None: training where it has a loss).

    "sgd" has momentum 0.9. Of parameters that PyTorch's fused kernels do not update rightly, as those of bfloat16, the
    step has the gradients alone: a plan leaves their update to PyTorch. InvalidInput for training without a loss,
    CaptureError where capture fails.
    """
    from threadcast.capture.graph.capture import capture_forward, capture_training

    mode = mode or default_mode(workload)
    if mode == "forward":
        return capture_forward(workload.model, *workload.inputs)
    if workload.loss is None:
        raise InvalidInput(
            f"mode='training': {workload.name} has no loss; return (model, inputs, target, loss), or use forward"
        )
    updater = _make_optimizer(workload, optimizer)
    return capture_training(workload.model, workload.loss, updater, workload.inputs, workload.target)


def default_mode(workload: Workload) -> Mode:
    """Training where the workload has a loss, else forward."""
    return "forward" if workload.loss is None else "training"


def graph_name(workload: Workload, mode: Mode, *, optimizer: OptimizerName = "sgd") -> str:
    """The name of the graph in the store: "resnet18/small/b8/training", with "-adam" added for Adam."""
    suffix = "-adam" if mode == "training" and optimizer == "adam" else ""
    return f"{workload.name}/{workload.size}/b{workload.batch}/{mode}{suffix}"


def eager_step(workload: Workload, mode: Mode, *, optimizer: OptimizerName = "sgd") -> Callable[[], object]:
    """The workload's step as a user of PyTorch writes it; it trains the workload's own model."""
    import torch

    model, inputs = workload.model, workload.inputs
    if mode == "forward":

        def infer() -> object:
            with torch.no_grad():
                return model(*inputs)

        return infer
    loss, target = workload.loss, workload.target
    if loss is None or target is None:
        raise InvalidInput(f"mode='training': {workload.name} has no loss")
    updater = _make_optimizer(workload, optimizer)

    def train() -> object:
        model.zero_grad()
        value = loss(model(*inputs), target)
        value.backward()  # type: ignore[no-untyped-call]
        updater.step()
        return value

    return train


def _make_optimizer(workload: Workload, name: str) -> Optimizer:
    import torch

    from threadcast.capture.graph.optimizers import KERNEL_TYPES, NoUpdate

    parameters, rate = list(workload.model.parameters()), _LEARNING_RATES[name]
    if any(parameter.dtype not in KERNEL_TYPES for parameter in parameters):
        return NoUpdate()
    return torch.optim.Adam(parameters, rate) if name == "adam" else torch.optim.SGD(parameters, rate, 0.9)
