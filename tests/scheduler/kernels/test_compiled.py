"""Machine code on disk is used only as long as no file of the folder of kernels has changed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from threadcast.scheduler.kernels import compiled
from threadcast.scheduler.kernels.compiled import _hash_of_sources

HELPER = "from threadcast.scheduler.kernels.compiled import compiled\n\n@compiled\ndef helper(x):\n    return x * {}\n"
CALLER = """from threadcast.scheduler.kernels.compiled import compiled
from kernel_helper import helper

@compiled
def caller(x):
    '''Its own text.'''
    return helper(x) + 1
"""


def result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("kernel_helper", "kernel_caller"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    monkeypatch.setattr(compiled, "_SOURCES", _hash_of_sources(folder))
    caller = importlib.import_module("kernel_caller").caller
    assert (caller.__name__, caller.__doc__, caller.__module__) == ("caller", "Its own text.", "kernel_caller")
    found: int = caller(10)
    return found


def test_a_change_of_a_helper_in_another_file_is_compiled_into_its_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "kernel_caller.py").write_text(CALLER)
    for factor in (2, 7):
        (tmp_path / "kernel_helper.py").write_text(HELPER.format(factor))
        assert result(tmp_path, monkeypatch) == 10 * factor + 1
    for name in ("kernel_helper", "kernel_caller"):
        sys.modules.pop(name, None)
