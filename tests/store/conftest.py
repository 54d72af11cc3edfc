from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from threadcast.core import Case, Machine, Measurement, Op, Sample, TensorSpec


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def machine() -> Machine:
    return Machine.uniform("bench", 8, group_size=2)


@pytest.fixture
def measure(machine: Machine) -> Callable[..., Measurement]:
    """Makes a distinct measurement a number; one of its counters was never read."""

    def make(index: int = 1, *, threads: int = 2, on: Machine = machine, kind: str = "mm") -> Measurement:
        op = Op(kind, (TensorSpec((8, index)), TensorSpec((index, 8))), {"alpha": 0.1}, (TensorSpec((8, 8)),))
        samples = tuple(Sample(1e-3 * index + 1e-7 * i, {"page_faults": float(i), "cycles": None}) for i in range(3))
        return Measurement(op, on, Case(threads), samples, {"cache": "warm", "converged": True, "index": index})

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.system)])
def store_url(request: pytest.FixtureRequest, store_path: Path) -> Path | str:
    """A new store of each kind of database: a path, or the URL of an empty PostgreSQL database."""
    if request.param == "sqlite":
        return store_path
    from tests.postgres import fresh_database

    return fresh_database(request.getfixturevalue("postgres"))
