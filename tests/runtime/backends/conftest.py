"""A small module, and a folder for what a search writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.runtime.backends.programs import Two


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which a search has its files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def module() -> Two:
    torch.manual_seed(0)
    return Two().eval()
