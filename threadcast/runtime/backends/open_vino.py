"""Runs a model in OpenVINO, one request at a time, on all cores or on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadcast.runtime.backends.arrays import ArrayCall, Arrays, with_tensors
from threadcast.runtime.backends.ways import IN_BFLOAT16

if TYPE_CHECKING:
    from threadcast.runtime.backends.frozen import TensorCall

_EPS = 1e-9
"""An argument of OpenVINO's norms that is not used by those that take off the mean only."""


def requests(path: Path, cores: int) -> dict[str, Callable[[], TensorCall]]:
    """For each setting of OpenVINO, by name, a function that loads the model at `path` and returns its call.

    In the settings that end with `IN_BFLOAT16` the model's operators round to bfloat16.
    """
    return {
        f"{threads} threads{end}": with_tensors(partial(request, path, threads, precision))
        for end, precision in (("", "f32"), (IN_BFLOAT16, "bf16"))
        for threads in sorted({1, cores}, reverse=True)
    }


def request(path: Path, threads: int, precision: str) -> ArrayCall:
    """Load the model, and return its call."""
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision,
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
