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
    with _as_capture_errors("cannot be exported to ONNX", path), _linear_rules():
        torch.onnx.export(program, (), str(path), input_names=names, dynamo=True, verbose=False)


@contextmanager
def _linear_rules() -> Iterator[None]:
    """Take from onnxscript's rewriting, within the context, the rule that looks at all nodes for each of them.

    `SlicesSplit` is its only rule for several results at once: of 26 s for T5-large (2,700 operators) it took 14.
    """
    from onnxscript import rewriter

    rules = getattr(rewriter, "_DEFAULT_REWRITE_RULES", ())
    rewriter._DEFAULT_REWRITE_RULES = tuple(rule for rule in rules if rule.name != "SlicesSplit")
    try:
        yield
    finally:
        rewriter._DEFAULT_REWRITE_RULES = rules


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
