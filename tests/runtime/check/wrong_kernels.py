"""Captured graphs of which one operator gives a wrong result, as a miscompiled kernel would."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from threadcast.capture.graph.captured import Captured
from threadcast.capture.graph.program import Program


class _Switch:
    """Whether the wrong kernels are wrong; else they do what they should."""

    on = True


wrong = _Switch()


@cache
def _library() -> torch.library.Library:
    library = torch.library.Library("threadcast_wrong", "DEF")
    library.define("relu(Tensor self) -> Tensor")
    library.impl("relu", lambda x: torch.ops.aten.relu.default(x) * (1.01 if wrong.on else 1.0), "CPU")
    library.define("_fused_sgd_(Tensor(a!)[] self, Tensor[] grads, Tensor(c!)[] momentum_buffer_list, *, "
                   "float weight_decay, float momentum, float lr, float dampening, bool nesterov, bool maximize, "
                   "bool is_first_step, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()")  # fmt: skip
    library.impl("_fused_sgd_", _no_update, "CPU")
    return library


def _no_update(*_: Any, **__: Any) -> None:
    """An update that leaves the parameters unchanged."""


def with_wrong_kernel(captured: Captured, kind: str) -> tuple[Captured, str]:
    """The graph with a wrong kernel in the place of its first operator of that name, and that operator's id."""
    _library()
    kernel = getattr(torch.ops.threadcast_wrong, kind).default
    program = captured.program
    at = next(i for i, n in enumerate(program.nodes) if getattr(n.target, "__name__", "").startswith(f"{kind}."))
    nodes = tuple(replace(node, target=kernel) if i == at else node for i, node in enumerate(program.nodes))
    changed = Program(program.inputs, nodes, program.outputs, program.structure)
    return replace(captured, program=changed), captured.graph.ids[at]
