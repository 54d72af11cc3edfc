"""Runs a model in ONNX Runtime: op by op on all cores or on one thread, or in its parallel mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from threadcast.runtime.backends.arrays import ArrayCall, Arrays, with_tensors

if TYPE_CHECKING:
    from threadcast.runtime.backends.frozen import TensorCall


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
