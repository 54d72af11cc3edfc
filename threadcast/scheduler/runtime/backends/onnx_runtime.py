"""ONNX Runtime, op by op on all threads, on one, and in its parallel mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from threadcast.scheduler.runtime.backends.frozen import TensorCall


def sessions(path: Path, cores: int) -> Iterator[tuple[str, TensorCall]]:
    """(setting, call) of each way to run the model at `path`."""
    for setting, threads, parallel in (
        (f"{cores} threads", cores, False), ("1 thread", 1, False), (f"parallel, {cores} threads", cores, True)
    ):  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if parallel:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        yield setting, _call(session)


def _call(session: onnxruntime.InferenceSession) -> TensorCall:
    names = [given.name for given in session.get_inputs()]

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        given = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, given)]

    return run
