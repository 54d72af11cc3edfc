"""No test reads or writes what the user's own runs have learned of co-runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def corun_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of co-run tables, empty."""
    directory = tmp_path / "corun"
    monkeypatch.setenv("THREADCAST_CORUN", str(directory))
    return directory
