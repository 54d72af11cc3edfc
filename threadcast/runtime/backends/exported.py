"""A program as other libraries take it: exported by PyTorch, and written as ONNX."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.written_out import written_out


class Exported:
    """A program with its files in `folder`. Each form is made once for all libraries, or fails for all of them.

    `cost_s` are the CPU seconds that its forms have taken so far.
    """

    def __init__(self, read: ReadProgram, folder: Path) -> None:
        self._read, self.folder, self.cost_s = read, folder, 0.0
        self._forms: dict[str, Any] = {}

    @property
    def program(self) -> ExportedProgram:
        """As PyTorch exports it."""
        return self._form("program", lambda: torch.export.export(written_out(self._read), self._read.example))  # type: ignore[no-any-return]

    @property
    def onnx(self) -> Path:
        """The file that `write_onnx` writes."""
        program, path = self.program, self.folder / "model.onnx"
        self._form("onnx", lambda: write_onnx(program, path))
        return path

    def _form(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._forms:
            began_s = cpu_s()
            try:
                self._forms[name] = make()
            except Exception as error:  # noqa: BLE001 - whatever stops the exporter
                self._forms[name] = error
            self.cost_s += cpu_s() - began_s
        if isinstance(found := self._forms[name], Exception):
            raise found
        return found


def cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has run."""
    return sum(os.times()[:4])


def write_onnx(program: ExportedProgram, path: Path) -> None:
    """Write `program` as ONNX to `path`, large weights to files beside it; CaptureError where it has no ONNX form.

    Onnxscript's rewriting is left out: it takes up to half of the time (Swin: 1.1 s of 2.3), calls by either library
    take as long without it, and some of its rules take 1e-9 for 0.
    """
    args, _ = program.example_inputs
    names = [f"input{i}" for i in range(len(args))]
    try:
        with warnings.catch_warnings(), torch.no_grad(), _decomposed_where_needed():
            warnings.simplefilter("ignore")
            torch.onnx.export(program, (), str(path), input_names=names, dynamo=True, verbose=False, optimize=False)
    except Exception as error:  # of a dozen kinds; each means that this module has no such form
        raise CaptureError(f"cannot be exported to ONNX: {type(error).__name__}") from error


@contextmanager
def _decomposed_where_needed() -> Iterator[None]:
    """Within the context programs whose operators all have an ONNX form are written as they are.

    PyTorch traces a program anew to decompose it, which takes half of an export (LeViT: 2.2 s of 4.4).
    """
    from torch.onnx._internal.exporter import _decomp, _fx_passes

    decompose = _fx_passes.decompose_with_registry

    def where_needed(exported_program: ExportedProgram, registry: Any) -> ExportedProgram:
        known = set(_decomp.get_onnx_implemented_overloads(registry))
        called = {node.target for node in exported_program.graph.nodes if node.op == "call_function"}
        others = called - known - {operator.getitem}
        writes = any(isinstance(one, OpOverload) and one._schema.is_mutable for one in called)
        return decompose(exported_program, registry) if others or writes else exported_program

    _fx_passes.decompose_with_registry = where_needed
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = decompose
