"""Chooses which idle cores an op gets, by their cache groups."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.core import Machine
from threadcast.core.found_by_cores import FoundByCores


class CorePicker:
    """Picks idle cores of one machine by their cache groups; the same arguments always give the same cores."""

    def __init__(self, machine: Machine) -> None:
        self._group = {core.id: core.group for core in machine.cores}
        self._order = {core: i for i, core in enumerate(c for group in machine.groups for c in group)}
        self._ordered = list(self._order) == [core.id for core in machine.cores]
        self._found: FoundByCores[tuple[tuple[int, ...], int, bool], tuple[int, ...]] = FoundByCores()

    def pick(self, idle: tuple[int, ...], count: int, *, spread: bool = False) -> tuple[int, ...]:
        """Return `count` of the `idle` core ids. `idle` must be in the machine's order and have at least `count` ids.

        Without `spread` (COMPACT): all from the smallest sufficient group; if none suffices, all idle cores of the
        groups with most of them, and the rest from the smallest group that suffices, so that large holes stay. With
        `spread`: one of each group, groups with most idle cores first, and further cores of a group only if there are
        too few groups. ValueError for more cores than are idle.
        """
        key = (idle, count, spread)
        found = self._found.get(key)
        if found is None:
            if count > len(idle):
                raise ValueError(f"{count} cores were asked of {len(idle)} idle ones")
            chosen = _spread(self._by_group(idle), count) if spread else _compact(self._by_group(idle), count)
            ordered = tuple(sorted(chosen, key=self._order.__getitem__))
            found = self._found.keep(key, ordered, ids=len(idle) + count)
        return found

    def _by_group(self, idle: tuple[int, ...]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for core in idle if self._ordered else sorted(idle, key=self._order.__getitem__):
            group = self._group[core]
            if group in groups:
                groups[group].append(core)
            else:
                groups[group] = [core]
        return sorted(groups.values(), key=len, reverse=True)


def without(idle: tuple[int, ...], cores: tuple[int, ...]) -> tuple[int, ...]:
    """Return the `idle` cores that are not among `cores`, in the same order."""
    busy = set(cores)
    return tuple(core for core in idle if core not in busy)


def _compact(groups: list[list[int]], count: int) -> list[int]:
    """`groups`: idle cores by group, most first."""
    chosen: list[int] = []
    for i, group in enumerate(groups):
        left = count - len(chosen)
        if left <= len(group):
            sufficient = [other for other in groups[i:] if len(other) >= left]
            return chosen + min(sufficient, key=len)[:left]
        chosen += group
    return chosen


def _spread(groups: list[list[int]], count: int) -> list[int]:
    rounds = range(max(map(len, groups), default=0))
    one_a_group = [group[i] for i in rounds for group in groups if i < len(group)]
    return one_a_group[:count]


def teams(machine: Machine, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the core ids of `count` teams of equal size, as large as possible, that share no cache group if possible.

    A team consists of whole groups, or several teams lie in one group, even if that leaves cores unused: otherwise a
    team would share a cache with the next (Tang et al. 2018, section 5). Where `count` is too large for that, the cores
    are divided in order. ValueError for more teams than cores.
    """
    order = [core for group in machine.groups for core in group]
    width = len(order) // count
    if width < 1:
        raise ValueError(f"{count} teams were asked of {len(order)} cores")
    size = min(map(len, machine.groups))
    for narrower in dict.fromkeys((width, width - width % size)):
        found = _without_shared_groups(machine.groups, narrower) if narrower else []
        if len(found) >= count:
            return tuple(found[:count])
    return tuple(tuple(order[i * width : (i + 1) * width]) for i in range(count))


def _without_shared_groups(groups: Sequence[Sequence[int]], width: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    team: list[int] = []  # of groups smaller than `width`
    for group in groups:
        if len(group) >= width:
            found += [tuple(group[i : i + width]) for i in range(0, len(group) - width + 1, width)]
            continue
        team += group
        if len(team) >= width:
            found.append(tuple(team[:width]))
            team = []
    return found
