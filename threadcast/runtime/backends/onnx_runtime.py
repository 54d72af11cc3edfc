"""Runs a model in ONNX Runtime: op by op on all cores or on one thread, or in its parallel mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from threadcast.runtime.backends.frozen import TensorCall


def sessions(path: Path, cores: int) -> dict[str, Callable[[], TensorCall]]:
    """For each setting of ONNX Runtime, by name, a function that loads the model at `path` and returns its call."""
    return {
        f"{cores} threads": partial(_session, path, cores, parallel=False),
        "1 thread": partial(_session, path, 1, parallel=False),
        f"parallel, {cores} threads": partial(_session, path, cores, parallel=True),
    }


def _session(path: Path, threads: int, *, parallel: bool) -> TensorCall:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        given = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, given)]

    return run
