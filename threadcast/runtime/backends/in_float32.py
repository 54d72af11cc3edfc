"""Rewrites a program in bfloat16 as one in float32, for a library that rounds to bfloat16 by itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from threadcast.runtime.backends.program_file import ReadProgram

aten = torch.ops.aten
_WIDENING = (aten._softmax.default, aten._log_softmax.default)
"""Operators whose third argument says that they take half precision and return float32."""


def in_float32(program: ReadProgram) -> ReadProgram:
    """Return the program with float32 in place of bfloat16 everywhere: arguments, weights, casts and results."""
    graph = _InFloat32(program.module).transform().graph
    held = {name: _widened(buffer) for name, buffer in program.module.named_buffers()}
    return ReadProgram(fx.GraphModule(held, graph), tuple(map(_widened, program.example)))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


class _InFloat32(fx.Transformer):
    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = pytree.tree_map(lambda part: torch.float32 if part is torch.bfloat16 else part, (args, kwargs))
        if target in _WIDENING:
            args = (*args[:2], False)
        return super().call_function(target, args, kwargs)
