"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_sessionstart() -> None:
    """Keep the compiled engine in the checkout, and let Ctrl-C reach the tests that send it.

    Shells start what runs in the background with Ctrl-C ignored.
    """
    os.environ.setdefault("THREADCAST_ENGINE_CACHE", str(Path(__file__).parents[1] / "build" / "native"))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """A PostgreSQL server for the session; skipped, with the reason, where there can be none."""
    from tests.postgres import running

    with running() as server:
        yield server
