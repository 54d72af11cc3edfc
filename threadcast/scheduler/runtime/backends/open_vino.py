"""OpenVINO, on all threads for one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import openvino
import torch
from torch import Tensor

from threadcast.scheduler.runtime.backends.frozen import TensorCall


def requests(path: Path, cores: int) -> Iterator[tuple[str, TensorCall]]:
    """(setting, call) of each way to run the model at `path`."""
    core = openvino.Core()
    for threads in sorted({1, cores}):
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(str(path), "CPU", settings)
        yield f"{threads} threads", _call(compiled.create_infer_request())


def _call(request: openvino.InferRequest) -> TensorCall:
    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        found = request.infer([tensor.detach().numpy() for tensor in tensors], share_inputs=True)
        return [torch.from_numpy(value.copy()) for value in found.values()]  # the request's own memory is used again

    return run
