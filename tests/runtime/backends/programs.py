"""A small module to build backends for, and programs as the process that builds backends reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.onnx_libraries import request, session, write_optimised
from threadcast.runtime.backends.program_file import ReadProgram, program_file, read_program
from threadcast.runtime.backends.written_out import written_out

ONNX = "onnxruntime", "openvino"
"""The backends that take a model in ONNX."""


class Two(nn.Module):
    """Nested arguments, an argument that is no tensor, nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, pair: dict[str, Tensor], power: int = 1) -> dict[str, Any]:
        y = self.norm(self.mix(pair["a"]) + pair["b"])
        return {"y": y**power, "parts": [y.relu(), y.sum(1)]}


ARGUMENTS: tuple[tuple[Any, ...], dict[str, Any]] = (
    ({"a": torch.linspace(-1, 1, 32).reshape(4, 8), "b": torch.ones(4, 8)},), {"power": 2}
)  # fmt: skip


def passed_on(function: Callable[..., Any], *arguments: Any) -> ReadProgram:
    """The program of `function(*arguments)`, written to a file and read from it."""
    content = program_file(capture_forward(function, *arguments))
    file = os.memfd_create("program")
    try:
        for offset, part in content.parts():
            os.pwrite(file, part, offset)
        return read_program(file)
    finally:
        os.close(file)


def exported(read: ReadProgram) -> ExportedProgram:
    """A program as backends are given it."""
    return torch.export.export(written_out(read), read.example)


def call_by(library: str, program: ExportedProgram, threads: int = 1) -> TensorCall:
    """The call of a program by a library that takes a model in ONNX."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_onnx(program, file)
        return session(write_optimised(file), threads) if library == "onnxruntime" else request(file, threads)
