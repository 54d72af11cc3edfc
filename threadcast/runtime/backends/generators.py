"""Leaves the caller's random generators as they are, whatever draws random numbers meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def generators_restored() -> Iterator[None]:
    """After the context, the generators of PyTorch (CPU), Python and NumPy (global) are as they were before it."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
