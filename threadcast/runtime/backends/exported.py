"""Writes an exported PyTorch program to an ONNX file, for other runtimes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write `program` as ONNX to `path`, large weights to files beside it; CaptureError where it has no ONNX form."""
    args, _ = program.example_inputs
    names = [f"input{i}" for i in range(len(args))]
    with _as_capture_errors("cannot be exported to ONNX", path):
        torch.onnx.export(program, (), str(path), input_names=names, dynamo=True, verbose=False)


@contextmanager
def _as_capture_errors(what: str, path: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        # The exporters raise a dozen kinds of errors; each means that this module has no such form.
        path.unlink(missing_ok=True)
        raise CaptureError(f"{what}: {type(error).__name__}") from error
