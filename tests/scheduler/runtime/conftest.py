"""The machine to run plans on, and teams of it that a file's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from threadcast.core import Machine, read_machine
from threadcast.scheduler.runtime.executors import Executors


@pytest.fixture(scope="session")
def machine() -> Machine:
    """At most two cores of this machine: the more teams, the longer the tests."""
    found = read_machine()
    return found.limited_to([core.id for core in found.cores[:2]])


@pytest.fixture(scope="module")
def executors(machine: Machine) -> Iterator[Executors]:
    made = Executors(machine)
    yield made
    made.close()
