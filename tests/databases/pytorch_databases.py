"""PyTorch's own lists of operators, modules and optimizers, each entry with examples of what it takes.

They belong to PyTorch's test suite, whose modules need `expecttest` for the name of a base class only; where it is not
installed that name is stood in for.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from importlib.util import find_spec

import torch

if find_spec("expecttest") is None:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    vars(sys.modules["expecttest"])["TestCase"] = unittest.TestCase

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import (
        _get_optim_inputs_including_global_cliquey_kwargs as optimizer_inputs,
    )
    from torch.testing._internal.common_optimizers import optim_db
    from torch.testing._internal.opinfo import core

# For each example PyTorch looks through the call stack for the unittest.TestCase that asks for it. There is none here,
# and the search, which reads the sources of all frames, would take most of the time.
vars(common_utils)["extract_test_fn"] = vars(core)["extract_test_fn"] = lambda: None

__all__ = ["DTYPES", "TRAINABLE", "module_db", "op_db", "optim_db", "optimizer_inputs"]

TRAINABLE = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DTYPES = (*TRAINABLE, torch.int64, torch.bool, torch.complex64)
"""What entries are tried with, where they support it."""
