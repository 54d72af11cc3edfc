"""Which cores an op gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Machine
from threadcast.scheduler.simulation.core_picker import CorePicker, teams

TILES = Machine.uniform("tiles", 8, group_size=2)
ALL = tuple(range(8))


def test_a_compact_team_takes_whole_groups() -> None:
    assert CorePicker(TILES).pick(ALL, 4) == (0, 1, 2, 3)
    assert CorePicker(TILES).pick((1, 2, 3, 5, 6, 7), 4) == (2, 3, 6, 7)


def test_a_compact_team_takes_the_smallest_group_that_suffices() -> None:
    assert CorePicker(TILES).pick((0, 1, 3), 1) == (3,)
    assert CorePicker(TILES).pick((0, 1, 2, 3, 5), 3) == (0, 1, 5)
    ccx = CorePicker(Machine.uniform("ccx", 16, group_size=8))
    assert ccx.pick((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 3) == (8, 9, 10)


def test_a_spread_team_takes_one_core_a_group() -> None:
    assert CorePicker(TILES).pick(ALL, 4, spread=True) == (0, 2, 4, 6)
    assert CorePicker(TILES).pick((0, 2, 3, 5, 6, 7), 2, spread=True) == (2, 6), "without a busy neighbour"
    assert CorePicker(TILES).pick((0, 1, 2, 3), 3, spread=True) == (0, 1, 2), "second cores where groups run out"


@given(idle=st.sets(st.integers(0, 11), min_size=1), spread=st.booleans(), data=st.data())
def test_what_is_picked_is_idle_and_as_many_as_asked(idle: set[int], spread: bool, data: st.DataObject) -> None:
    machine = Machine.uniform("m", 12, group_size=data.draw(st.sampled_from([1, 2, 3, 5, None])))
    count = data.draw(st.integers(1, len(idle)))
    cores = CorePicker(machine).pick(tuple(sorted(idle)), count, spread=spread)
    assert len(cores) == len(set(cores)) == count
    assert set(cores) <= idle


def test_more_cores_than_are_idle_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 cores were asked of 2"):
        CorePicker(TILES).pick((0, 1), 3)


@pytest.mark.parametrize(
    ("count", "width"), [(1, 68), (2, 34), (4, 16), (8, 8), (16, 4), (32, 2), (34, 2), (64, 1), (68, 1)]
)
def test_teams_of_a_tiled_machine_share_no_tile_where_possible(count: int, width: int) -> None:
    made = teams(Machine.uniform("knl", 68, group_size=2), count)
    assert [len(team) for team in made] == [width] * count
    cores = [core for team in made for core in team]
    assert len(set(cores)) == len(cores)
    if width > 1:
        tiles = [{core // 2 for core in team} for team in made]
        assert sum(map(len, tiles)) == len(set.union(*tiles))


def test_teams_smaller_than_a_group_never_cross_into_the_next() -> None:
    made = teams(Machine.uniform("zen", 16, group_size=8), 5)
    assert made == ((0, 1, 2), (3, 4, 5), (8, 9, 10), (11, 12, 13)) or len({len(t) for t in made}) == 1
    assert len(made) == 5


@given(cores=st.integers(1, 40), size=st.integers(1, 9), data=st.data())
def test_teams_are_disjoint_and_of_one_size(cores: int, size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, cores))
    made = teams(Machine.uniform("m", cores, group_size=size), count)
    used = [core for team in made for core in team]
    assert len(made) == count
    assert len({len(team) for team in made}) == 1
    assert len(set(used)) == len(used)


def test_more_teams_than_cores_are_an_error() -> None:
    with pytest.raises(ValueError, match="9 teams were asked of 8"):
        teams(TILES, 9)
