"""What a worker says of the machine that it runs on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.core import trees
from threadcast.core import read_machine
from threadcast.core.topology import whole_cores
from threadcast.fleet import measuring
from threadcast.fleet.measuring import Description, describe


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of eight cores of two hardware threads, 0 and 8, 1 and 9, and so on."""
    trees.epyc_two_sockets(tmp_path, per_socket=4)
    monkeypatch.setattr(measuring, "whole_cores", partial(whole_cores, root=tmp_path))
    return tmp_path


def described(root: Path, monkeypatch: pytest.MonkeyPatch, affinity: set[int]) -> Description:
    monkeypatch.setattr(measuring, "read_machine", partial(read_machine, root, affinity=affinity))
    return describe(None)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [({0}, {8}, True), ({0, 8}, {8}, True), ({0, 1}, {9, 10}, True), ({0, 8}, {1, 9}, False), ({0}, {9}, False)],
)
def test_workers_on_hardware_threads_of_one_core_do_not_measure_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, one: set[int], other: set[int], shared: bool
) -> None:
    first, second = described(root, monkeypatch, one), described(root, monkeypatch, other)
    assert first.shares_cpus_with(second) is second.shares_cpus_with(first) is shared
