"""`torch.compile` with the parameters as constants."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from threadcast.runtime.backends.frozen import FlatModule, TensorCall


def compiled_call(module: FlatModule) -> TensorCall:
    """Compile the module with `torch.compile`, its weights as constants, and return its call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's modules warn of each other when they are imported
        import torch._inductor.config as inductor

        compiled = torch.compile(module)

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            with torch.no_grad(), inductor.patch(freezing=True):
                result: Sequence[Tensor] = compiled(*tensors)
                return result

        run(module.tensors(module.example))  # compiles
    return run
