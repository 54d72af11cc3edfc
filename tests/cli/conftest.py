"""No test reads or writes what the user's own runs have learned of co-runs, or waits for a quiet machine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from threadcast.collector import busy
from threadcast.collector.busy import Cpu, CpuTimes
from threadcast.core.errors import MeasurementError


@pytest.fixture(autouse=True)
def corun_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of co-run tables, empty."""
    directory = tmp_path / "corun"
    monkeypatch.setenv("THREADCAST_CORUN", str(directory))
    return directory


@pytest.fixture(autouse=True, scope="session")
def load_is_not_known() -> Iterator[None]:
    """How busy others keep this machine decides nothing in a test, and no command waits."""

    def unreadable(cpus: object) -> CpuTimes:
        raise MeasurementError("not in a test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(busy, "read_cpu_times", unreadable)
        yield


@pytest.fixture
def others_use_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others use half of the CPUs all the time, as a command under test reads it; each reading is a second later."""
    seconds = itertools.count()

    def read(cpus: Iterable[Cpu]) -> CpuTimes:
        now = next(seconds)
        return CpuTimes(dict.fromkeys(cpus, (50 * now, 0, 100 * now)), 0.0, float(now))

    monkeypatch.setattr(busy, "read_cpu_times", read)
    monkeypatch.setattr(busy, "INTERVAL_S", 0.001)
