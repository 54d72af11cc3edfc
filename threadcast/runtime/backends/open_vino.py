"""Runs a model in OpenVINO, one request at a time, on all cores or on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.ways import IN_BFLOAT16


def requests(path: Path, cores: int) -> dict[str, Callable[[], TensorCall]]:
    """For each setting of OpenVINO, by name, a function that loads the model at `path` and returns its call.

    In the settings that end with `IN_BFLOAT16` the model's operators round to bfloat16.
    """
    return {
        f"{threads} threads{end}": partial(_request, path, threads, precision)
        for end, precision in (("", "f32"), (IN_BFLOAT16, "bf16"))
        for threads in sorted({1, cores}, reverse=True)
    }


def _request(path: Path, threads: int, precision: str) -> TensorCall:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision,
    }  # fmt: skip
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()

    one_at_a_time = threading.Lock()  # the request's own memory is used again

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        with one_at_a_time:
            found = request.infer([tensor.detach().numpy() for tensor in tensors], share_inputs=True)
            return [torch.from_numpy(value.copy()) for value in found.values()]

    return run
