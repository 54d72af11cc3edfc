"""`torch.compile` with the parameters as constants."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch._inductor.config as inductor
from torch import Tensor

from threadcast.scheduler.runtime.backends.frozen import FlatModule, TensorCall


def compiled_call(module: FlatModule) -> TensorCall:
    """The module compiled by Inductor, with its weights folded in."""
    compiled = torch.compile(module)

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad(), inductor.patch(freezing=True):
            result: Sequence[Tensor] = compiled(*tensors)
            return result

    run(module.tensors(module.example))  # compiles
    return run
