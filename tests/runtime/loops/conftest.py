"""Loops are compared with eager PyTorch as wholes, so their steps are not verified one by one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def graphs_run_steps(looks_run_steps: None) -> None:
    """No loop is so long that a plan is made."""


@pytest.fixture(autouse=True)
def every_fifth_step_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the fixture of the same name: no step is run by PyTorch too."""
    monkeypatch.setenv("THREADCAST_ENGINE_VERIFY_EVERY", "0")
