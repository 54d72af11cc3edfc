"""Runs a model in ONNX: in ONNX Runtime and in OpenVINO, op by op on all the cores that they are given.

Other settings are not tried: of 136 public models that a backend runs fastest, none was fastest on one thread or with
operators side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from threadcast.runtime.backends.frozen import TensorCall

_Arrays = Sequence[NDArray[Any]]


def _with_tensors(call: Callable[[_Arrays], _Arrays]) -> TensorCall:
    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.from_numpy(one) for one in call([tensor.detach().numpy() for tensor in tensors])]

    return run


def write_optimised(path: Path) -> Path:
    """Write the model at `path` beside it as ONNX Runtime optimises it for this machine; return the new path."""
    import onnxruntime

    found = path.with_name("optimised.onnx")
    options = _options(1)
    options.optimized_model_filepath = str(found)
    for name, value in (("file_name", "optimised.data"), ("min_size_in_bytes", "1024")):
        options.add_session_config_entry(f"session.optimized_model_external_initializers_{name}", value)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return found


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def session(path: Path, threads: int) -> TensorCall:
    """Load what `write_optimised` wrote into ONNX Runtime, and return its call."""
    import onnxruntime

    options = _options(threads)
    # The model is optimised already: loading it as it is takes a fifth of the time.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Else its threads spin for some 50 ms after a call: the caller's next operators take twice as long, and so do the
    # calls of whatever it is compared with, so that the slower was kept (decision 59). Calls take no longer with it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    loaded = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in loaded.get_inputs()]

    def run(given: _Arrays) -> _Arrays:
        found: _Arrays = loaded.run(None, dict(zip(names, given, strict=True)))
        return found

    return _with_tensors(run)


def request(path: Path, threads: int) -> TensorCall:
    """Load the model into OpenVINO, and return its call."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # its own choice is bfloat16 on processors that have it
    }  # fmt: skip
    of_one = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    one_at_a_time = threading.Lock()  # the request's own memory is used again

    def run(given: _Arrays) -> _Arrays:
        with one_at_a_time:
            found = of_one.infer(list(given), share_inputs=True)
            return [value.copy() for value in found.values()]

    return _with_tensors(run)
