"""Writes an exported PyTorch program to an ONNX file, for other runtimes."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write `program` as ONNX to `path`, large weights to files beside it; CaptureError where it has no ONNX form."""
    args, _ = program.example_inputs
    names = [f"input{i}" for i in range(len(args))]
    with _as_capture_errors("cannot be exported to ONNX", path), _chosen_rules(), _decomposed_where_needed():
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
def _decomposed_where_needed() -> Iterator[None]:
    """Have programs of operators that all have an ONNX form taken as they are, within the context.

    PyTorch traces every program anew to have others decomposed, which takes half of an export (LeViT: 2.2 s of 4.4).
    """
    from torch.onnx._internal.exporter import _decomp, _fx_passes

    decompose = _fx_passes.decompose_with_registry

    def where_needed(exported_program: ExportedProgram, registry: Any) -> ExportedProgram:
        known = set(_decomp.get_onnx_implemented_overloads(registry))
        targets = {node.target for node in exported_program.graph.nodes if node.op == "call_function"} - {
            operator.getitem
        }
        have_forms = all(isinstance(one, OpOverload) and one in known and not one._schema.is_mutable for one in targets)
        return exported_program if have_forms else decompose(exported_program, registry)

    _fx_passes.decompose_with_registry = where_needed
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = decompose


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
