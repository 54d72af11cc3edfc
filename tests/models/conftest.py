from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def models_fit_in_one_thread(one_library_thread: None) -> None:
    """In every file of this folder."""


@pytest.fixture
def worker_processes() -> Iterator[None]:
    """joblib keeps its worker processes for the next call; end them with the test."""
    from joblib.externals.loky import get_reusable_executor

    yield
    get_reusable_executor().shutdown(wait=True)
