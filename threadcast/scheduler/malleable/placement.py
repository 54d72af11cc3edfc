"""Which cores each process gets, once it is known how many: those that it has, and whole cache groups where it can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from threadcast.core import Machine

CoreIds = tuple[int, ...]


def place(counts: Mapping[str, int], machine: Machine, before: Mapping[str, Iterable[int]]) -> dict[str, CoreIds]:
    """Cores by process. Nobody gets another's, unless there are more processes than cores, which then share by turns.

    A process keeps of its cores those of the cache groups where it has most; further ones come from groups where it
    has some, then from the emptiest.
    """
    if sum(counts.values()) > len(machine):
        return _shared(counts, machine, before)
    group = {core.id: core.group for core in machine.cores}
    kept: dict[str, list[int]] = {}
    owned: set[int] = set()
    for name, count in counts.items():
        own = [core for core in before.get(name, ()) if core in group and core not in owned]
        size = Counter(group[core] for core in own)
        own.sort(key=lambda core: (-size[group[core]], group[core], core))
        kept[name] = own[:count]
        owned.update(kept[name])
    free = {core.id for core in machine.cores} - owned
    for name in sorted(counts, key=lambda name: len(kept[name]) - counts[name]):
        mine = kept[name]
        while len(mine) < counts[name]:
            mine_in, free_in = Counter(group[core] for core in mine), Counter(group[core] for core in free)
            chosen = min(free, key=lambda core: (-mine_in[group[core]], -free_in[group[core]], core))
            free.remove(chosen)
            mine.append(chosen)
    return {name: tuple(sorted(mine)) for name, mine in kept.items()}


def _shared(counts: Mapping[str, int], machine: Machine, before: Mapping[str, Iterable[int]]) -> dict[str, CoreIds]:
    """One core for each process, none with more than one process more than another."""
    load = Counter({core.id: 0 for core in machine.cores})
    most = -(-len(counts) // len(machine))
    found: dict[str, CoreIds] = {}
    for name in counts:
        own = [core for core in before.get(name, ()) if core in load and load[core] < most]
        if own:
            load[own[0]] += 1
            found[name] = (own[0],)
    for name in counts:
        if name not in found:
            core = min(load, key=lambda core: (load[core], core))
            load[core] += 1
            found[name] = (core,)
    return {name: found[name] for name in counts}
