"""Chooses which cores each process gets, given how many: first those that it has, then whole cache groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType

from threadcast.core import Machine

CoreIds = tuple[int, ...]

_NOBODY: Mapping[str, Set[int]] = MappingProxyType({})


def place(
    counts: Mapping[str, int],
    machine: Machine,
    before: Mapping[str, Iterable[int]],
    restricted: Mapping[str, Set[int]] = _NOBODY,
) -> dict[str, CoreIds]:
    """Return the ids of each process's cores: as many as `counts` says, and no core twice.

    A process keeps cores that it had `before`; if it has too many, it keeps those in the cache groups where it has
    most. Further cores come from groups where it has some already, then from the groups with most free cores.

    A process in `restricted` gets only the cores named there. Other processes make room for it if they can use other
    cores; if they cannot, it gets fewer cores, or a core that it shares. If the sum of `counts` exceeds the number of
    cores, each process gets one core, shared as evenly as restrictions allow.
    """
    group = {core.id: core.group for core in machine.cores}
    allowed = {name: (restricted.get(name, group.keys()) & group.keys()) or group.keys() for name in counts}
    if sum(counts.values()) > len(machine):
        return _shared(counts, before, allowed)
    given: dict[str, list[int]] = {}
    owned: set[int] = set()
    for name, count in counts.items():
        own = [core for core in before.get(name, ()) if core in allowed[name] and core not in owned]
        size = Counter(group[core] for core in own)
        own.sort(key=lambda core: (-size[group[core]], group[core], core))
        given[name] = own[:count]
        owned.update(given[name])
    free = group.keys() - owned
    lacking = sorted(
        (name for name in counts if len(given[name]) < counts[name]), key=lambda n: len(given[n]) - counts[n]
    )
    while lacking:
        name = lacking[0] if not restricted else min(lacking, key=lambda name: len(given[name]))
        mine, there = given[name], free & allowed[name]
        if there:
            mine_in, free_in = Counter(group[core] for core in mine), Counter(group[core] for core in free)
            chosen = min(there, key=lambda core: (-mine_in[group[core]], -free_in[group[core]], core))
            free.remove(chosen)
            mine.append(chosen)
        elif not _make_room(name, given, free, allowed):
            lacking.remove(name)
            continue
        if len(mine) == counts[name]:
            lacking.remove(name)
    load = Counter(core for mine in given.values() for core in mine)
    return {
        name: tuple(sorted(mine)) or (min(allowed[name], key=lambda core: (load[core], core)),)
        for name, mine in given.items()
    }


def _make_room(name: str, given: dict[str, list[int]], free: set[int], allowed: Mapping[str, Set[int]]) -> bool:
    """Give `name` a core of another process, which gets one of a third, and so on up to a free core (Berge 1957).

    Returns whether such a chain was found.
    """
    gives: dict[str, tuple[str, int]] = {}  # by process: to whom, and which core
    asking = [name]
    for one in asking:
        for other, theirs in given.items():
            wanted = [core for core in theirs if core in allowed[one]]
            if other == name or other in gives or not wanted:
                continue
            gives[other] = (one, min(wanted))
            asking.append(other)
            if there := free & allowed[other]:
                chosen = min(there)
                free.remove(chosen)
                given[other].append(chosen)
                while other != name:
                    to, core = gives[other]
                    given[other].remove(core)
                    given[to].append(core)
                    other = to
                return True
    return False


def _shared(
    counts: Mapping[str, int], before: Mapping[str, Iterable[int]], allowed: Mapping[str, Set[int]]
) -> dict[str, CoreIds]:
    """One core for each process. Without restrictions, numbers of processes on two cores differ by at most one."""
    load = Counter({core: 0 for cores in allowed.values() for core in cores})
    most = -(-len(counts) // len(load))
    found: dict[str, CoreIds] = {}
    for name in counts:
        own = [core for core in before.get(name, ()) if core in allowed[name] and load[core] < most]
        if own:
            load[own[0]] += 1
            found[name] = (own[0],)
    for name in counts:
        if name not in found:
            core = min(allowed[name], key=lambda core: (load[core], core))
            load[core] += 1
            found[name] = (core,)
    return {name: found[name] for name in counts}
