"""Sockets in a folder of the test's own; processes and an arbiter that end with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.malleable.processes import Running
from threadcast.core import read_machine
from threadcast.malleable.arbiter import Arbiter
from threadcast.malleable.inherited_limit import VARIABLE
from threadcast.malleable.outsiders import Outsiders


class Nobody(Outsiders):
    """Others, of whom nothing is known."""

    def used(self, own_s: float, now_s: float) -> float | None:
        return None


@pytest.fixture(autouse=True)
def own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # what members in this process record ends with the test


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(*command: str) -> Running:
        running.append(Running(*command))
        return running[-1]

    yield begin
    for one in running:
        one.end()


@pytest.fixture
def arbitrate(tmp_path: Path) -> Iterator[Callable[..., Callable[[], None]]]:
    """Starts an arbiter in a thread, by the clock that is passed or the real one, and gives what stops it.

    What else runs on the machine that tests it is nothing to it, unless `outsiders` are passed.
    """
    stops: list[Callable[[], None]] = []

    def begin(now: Callable[[], float] = time.monotonic, outsiders: Outsiders | None = None) -> Callable[[], None]:
        machine = read_machine()
        path = tmp_path / "threadcast" / "arbiter.sock"
        arbiter = Arbiter(machine, path, now=now, outsiders=outsiders or Nobody(machine))
        serving = threading.Thread(target=arbiter.serve)
        serving.start()

        def stop() -> None:
            if serving.is_alive():
                arbiter.stop()
                serving.join()
                arbiter.close()

        stops.append(stop)
        return stop

    yield begin
    for stop in stops:
        stop()
