"""A module as an ONNX file, for the runtimes that read one."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch

from threadcast.core.errors import CaptureError
from threadcast.scheduler.runtime.backends.frozen import FlatModule


def write_onnx(module: FlatModule, path: Path) -> None:
    """Write `module` to `path`, and beside it what is too large; CaptureError where an operator has no ONNX form."""
    inputs = tuple(module.tensors(module.example))
    names = [f"input{i}" for i in range(len(inputs))]
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the exporter tells of its every rewrite
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, inputs, str(path), input_names=names, dynamo=True, verbose=False)
    except Exception as error:
        # The exporter raises a dozen kinds of errors; each means that this module has no ONNX form.
        path.unlink(missing_ok=True)
        raise CaptureError(f"cannot be exported to ONNX: {type(error).__name__}") from error
    finally:
        logging.disable(before)
