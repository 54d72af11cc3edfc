"""Which cores are idle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from threadcast.core import Core, Machine, found_by_cores
from threadcast.core.errors import IllegalLaunch
from threadcast.scheduler.policies import Launch
from threadcast.scheduler.simulation.core_picker import CorePicker
from threadcast.scheduler.simulation.occupancy import Occupancy

IDS = (5, 9, 2, 70, 11)
MACHINE = Machine("odd", tuple(Core(number, (number, number + 100), group=0) for number in IDS))


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.sets(st.sampled_from(IDS), min_size=1), st.integers(0, 2), st.integers(0, 2))),
    data=st.data(),
)
def test_idle_cores_are_those_of_which_no_hardware_thread_is_taken(
    steps: list[tuple[set[int], int, int]], data: st.DataObject
) -> None:
    found, running = Occupancy(MACHINE), list[Launch]()
    for cores, more, hardware_thread in steps:
        launch = Launch(0, tuple(sorted(cores)), len(cores) + more, hardware_thread)
        try:
            found.take(launch)
        except IllegalLaunch:
            assert any(set(at.cores) & cores for at in running)
        else:
            running.append(launch)
        if running and data.draw(st.booleans()):
            found.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        busy = {core for at in running for core in at.cores}
        assert found.idle() == tuple(core for core in IDS if core not in busy)


def test_ever_new_sets_of_idle_cores_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_by_cores, "MOST", 40)
    found, picker = Occupancy(MACHINE), CorePicker(MACHINE)
    for number in range(1, 2 ** len(IDS) - 1):
        cores = tuple(core for i, core in enumerate(IDS) if number >> i & 1)
        launch = Launch(0, cores, len(cores))
        found.take(launch)
        idle = found.idle()
        assert set(idle) == set(IDS) - set(cores)
        assert picker.pick(idle, 1)[0] in idle
        found.release(launch)
    assert 0 < len(found._idle) <= 4
    assert 0 < len(picker._found) <= 4
