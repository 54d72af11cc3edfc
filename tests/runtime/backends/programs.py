"""A small module to build backends for, and programs as the process that builds backends reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends.program_file import ReadProgram, program_file, read_program


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
        assert os.fstat(file).st_size <= content.size_bytes
        return read_program(file)
    finally:
        os.close(file)
