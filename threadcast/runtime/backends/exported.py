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
    with _as_capture_errors("cannot be exported to ONNX", path), _chosen_rules():
        torch.onnx.export(program, (), str(path), input_names=names, dynamo=True, verbose=False)


@contextmanager
def _chosen_rules() -> Iterator[None]:
    """Take some of onnxscript's rules of rewriting away within the context.

    `SlicesSplit` looks at all operators for each of them: of 26 s for T5-large (2,700 operators) it took 14. The rules
    for adding 0 and multiplying by 1 take numbers up to 1e-8 for 0, as in log(x + 1e-9); both runtimes leave out what
    adds 0 themselves.
    """
    from onnxscript import rewriter

    rules = getattr(rewriter, "_DEFAULT_REWRITE_RULES", ())
    without = {id(rule) for rule in getattr(getattr(rewriter, "_no_op", None), "rules", ())}
    chosen = tuple(rule for rule in rules if rule.name != "SlicesSplit" and id(rule) not in without)
    rewriter._DEFAULT_REWRITE_RULES = chosen
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
