"""Capturing a network of `threadcast.networks` for inference or for a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from threadcast.core.errors import InvalidInput
from threadcast.networks import Workload

if TYPE_CHECKING:
    from threadcast.collector.capture import Captured

Mode = Literal["forward", "training"]
OptimizerName = Literal["sgd", "adam"]

_LEARNING_RATES = {"sgd": 0.01, "adam": 1e-3}
"""Usual ones. They are inputs of the captured step and have no part in what it costs."""


def capture_workload(workload: Workload, mode: Mode | None = None, *, optimizer: OptimizerName = "sgd") -> Captured:
    """Capture the workload's inference or its training step (None: training where it has a loss).

    "sgd" has momentum 0.9. InvalidInput for training without a loss, CaptureError where capture fails.
    """
    import torch

    from threadcast.collector.capture import capture_forward, capture_training

    mode = mode or default_mode(workload)
    if mode == "forward":
        return capture_forward(workload.model, *workload.inputs)
    if workload.loss is None:
        raise InvalidInput(
            f"mode='training': {workload.name} has no loss; return (model, inputs, target, loss), or use forward"
        )
    parameters, rate = workload.model.parameters(), _LEARNING_RATES[optimizer]
    made = torch.optim.Adam(parameters, rate) if optimizer == "adam" else torch.optim.SGD(parameters, rate, 0.9)
    return capture_training(workload.model, workload.loss, made, workload.inputs, workload.target)


def default_mode(workload: Workload) -> Mode:
    """Training where the workload has a loss, else forward."""
    return "forward" if workload.loss is None else "training"


def graph_name(workload: Workload, mode: Mode, *, optimizer: OptimizerName = "sgd") -> str:
    """The name under which the store keeps the graph: "resnet18/small/b8/training", "-adam" behind for Adam."""
    suffix = "-adam" if mode == "training" and optimizer == "adam" else ""
    return f"{workload.name}/{workload.size}/b{workload.batch}/{mode}{suffix}"
