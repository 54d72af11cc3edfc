"""Whether there is a C++ compiler: without, the native engine's tests cannot run, and the Python engine serves."""

from __future__ import annotations

import os
import shutil

import pytest

HAS_COMPILER = shutil.which(os.environ.get("CXX", "c++")) is not None
needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="needs a C++ compiler")


def skip_without_compiler() -> None:
    """Skip the calling test where there is none."""
    if not HAS_COMPILER:
        pytest.skip("needs a C++ compiler")
