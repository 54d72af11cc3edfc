"""Runs a model in ONNX: in ONNX Runtime, op by op on all cores or on one thread, or parallel, and in OpenVINO.

A model takes and returns NumPy's arrays, so that a process without PyTorch can make calls, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from threadcast.runtime.backends.frozen import TensorCall

_EPS = 1e-9
"""An argument of OpenVINO's norms that is not used by those that take off the mean only."""

Arrays = Sequence[NDArray[Any]]
ArrayCall = Callable[[Arrays], Arrays]


def with_tensors(load: Callable[[], ArrayCall]) -> Callable[[], TensorCall]:
    """Return a function that loads a model, and returns its call with PyTorch's tensors."""

    def loaded() -> TensorCall:
        import torch

        call = load()

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [torch.from_numpy(one) for one in call([tensor.detach().numpy() for tensor in tensors])]

        return run

    return loaded


def sessions(path: Path, cores: int) -> dict[str, Callable[[], TensorCall]]:
    """For each setting of ONNX Runtime, by name, a function that loads what `write_optimised` wrote to `path`.

    The function returns the model's call.
    """
    opened = partial(session, path)
    settings = {"1 thread": with_tensors(partial(opened, 1))}
    if cores == 1:
        return settings
    return {
        f"{cores} threads": with_tensors(partial(opened, cores)),
        **settings,
        f"parallel, {cores} threads": with_tensors(partial(opened, cores, parallel=True)),
    }


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


def session(path: Path, threads: int, *, parallel: bool = False) -> ArrayCall:
    """Load the model, and return its call."""
    import onnxruntime

    options = _options(threads)
    # The model is optimised already: loading it as it is takes a fifth of the time.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Else its threads spin for some 50 ms after a call: the caller's next operators take twice as long, and so do the
    # calls of whatever it is compared with, so that the slower was kept (decision 59). Calls take no longer with it.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = threads
    loaded = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [given.name for given in loaded.get_inputs()]

    def run(given: Arrays) -> Arrays:
        found: Arrays = loaded.run(None, dict(zip(names, given, strict=True)))
        return found

    return run


def requests(path: Path, cores: int) -> dict[str, Callable[[], TensorCall]]:
    """For each setting of OpenVINO, by name, a function that loads the model at `path` and returns its call."""
    return {
        f"{threads} threads": with_tensors(partial(request, path, threads))
        for threads in sorted({1, cores}, reverse=True)
    }


def request(path: Path, threads: int) -> ArrayCall:
    """Load the model, and return its call; without the hint OpenVINO rounds to bfloat16 on processors that have it."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32",
    }  # fmt: skip
    core = openvino.Core()
    model = core.read_model(str(path))
    _centre_norms(model)
    of_one = core.compile_model(model, "CPU", settings).create_infer_request()

    one_at_a_time = threading.Lock()  # the request's own memory is used again

    def run(given: Arrays) -> Arrays:
        with one_at_a_time:
            found = of_one.infer(list(given), share_inputs=True)
            return [value.copy() for value in found.values()]

    return run


def _centre_norms(model: Any) -> None:
    """Have the layer norms of an OpenVINO model take their rows without the mean (`constant_rows.py`).

    Group norms, whose axes its reader of ONNX files knows, have got them so.
    """
    from openvino import opset13

    for norm in model.get_ops():
        if norm.get_type_name() != "MVN" or _is_centred(norm):
            continue
        without_mean = opset13.mvn(norm.input_value(0), norm.input_value(1), False, _EPS, "inside_sqrt")
        norm.input(0).replace_source_output(without_mean.output(0))


def _is_centred(norm: Any) -> bool:
    """Whether a norm over known axes takes a difference from a mean, which `constant_rows.centred` selects."""
    value, axes = (norm.input_value(at).get_node() for at in (0, 1))
    while value.get_type_name() == "Reshape":
        value = value.input_value(0).get_node()
    if axes.get_type_name() != "Constant" or value.get_type_name() != "Subtract":
        return False
    return bool(value.input_value(1).get_node().get_type_name() == "Select")
