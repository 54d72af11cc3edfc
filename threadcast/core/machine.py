"""The cores of a machine, which of them share a cache, and the legal ways to place threads on them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from threadcast.core.case import Affinity, Case
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, member

SMALL_GROUP = 4
"""In cores. Cache groups up to this size (tiles, L2 pairs, clusters of small cores) are used whole under COMPACT: in a
partly used one each thread has more cache than in the others, and the loop waits for the slowest (Liu et al. 2018,
III-B). In larger groups (a CCX, a socket) the imbalance is slight and every count is legal."""


MAX_CORES = 4096
"""Most cores of a machine that is described and not read from the system; the largest shared-memory machines have far
fewer."""


SCHEMA = "threadcast.machine/1"
"""Of the document of a machine; a later version reads this one, too."""

STRUCTURE = 1
"""Version of `Machine.structure`: another one makes each machine another one, and leaves all that is stored of it."""


SPEEDS = 1.3
"""Ratio of the frequencies of cores whose speed differs: of performance cores to efficiency cores, 1.2 to 1.6."""


LEAST_HZ, MOST_HZ = 1e6, 1e12
"""Bounds of a core's frequency: from far below the slowest computers to far above the fastest."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core. `cpus` are the kernel's numbers of its hardware threads, the first one used first."""

    id: int
    cpus: tuple[int, ...]
    group: int
    """Number of the cache group: cores of one group share the innermost cache that some but not all cores share."""
    node: int = 0
    socket: int = 0
    max_hz: float | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache and the ids of the cores that share it. `level` is 1, 2, 3; instruction caches are left out.

    `size_bytes` is 0 where the system does not say it.
    """

    level: int
    size_bytes: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The cores that may be used, fastest first, and the caches that they share.

    Read one with `core.topology.read_machine`, or describe one with `Machine.uniform`. Two machines are equal when
    their fingerprints are: two equal parts of one computer are, though their CPUs are others.
    """

    name: str
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...] = ()
    only: tuple[Case, ...] = ()
    """The only legal cases, where the machine is that of a table of past measurements; those that need more cores than
    there are are left out. Empty: what `cores` allow."""
    fingerprint: str = field(init=False)
    """Stable identity as text: a short name, the core count, and 8 hexadecimal digits of a hash of `structure`."""
    _group_sizes: tuple[int, ...] = field(init=False, repr=False)
    """Number of cores of each of `groups`."""

    def __post_init__(self) -> None:
        if not self.cores:
            raise InvalidInput(f"machine {self.name!r} has no cores")
        for what, values in (("core id", [c.id for c in self.cores]), ("cpu", [x for c in self.cores for x in c.cpus])):
            if len(set(values)) != len(values):
                raise InvalidInput(f"machine {self.name!r} uses a {what} twice: {sorted(values)}")
        object.__setattr__(self, "_group_sizes", tuple(map(len, self.groups)))
        object.__setattr__(self, "only", tuple(sorted(case for case in set(self.only) if not self._lacks(case))))
        text = json.dumps(self.structure, sort_keys=True)
        short = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:40] or "machine"
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        object.__setattr__(self, "fingerprint", f"{short}-{len(self.cores)}c-{digest}")

    def __eq__(self, other: object) -> bool:
        return self.fingerprint == other.fingerprint if isinstance(other, Machine) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __len__(self) -> int:
        return len(self.cores)

    @property
    def threads_per_core(self) -> int:
        """Hardware threads of the core that has the most."""
        return max(len(core.cpus) for core in self.cores)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Core ids by cache group, groups in order of their first core."""
        groups: dict[int, list[int]] = {}
        for core in self.cores:
            groups.setdefault(core.group, []).append(core.id)
        return tuple(map(tuple, groups.values()))

    @property
    def structure(self) -> dict[str, Any]:
        """What the identity of a machine is made of, as JSON: its name, how its cores share caches, sockets and nodes.

        Cores, groups, nodes and sockets are numbered in the order of `cores`, so that equal parts of one machine are
        one machine, wherever their CPUs lie. Of frequencies it tells fast cores from slow ones, which favoured cores of
        one kind (6 %) are not. All else is a property that may come, go and change: the kernel's numbers, whatever
        later versions add.
        """
        position = {core.id: i for i, core in enumerate(self.cores)}
        groups, nodes, sockets = (
            _numbered(getattr(core, name) for core in self.cores) for name in ("group", "node", "socket")
        )
        sharers = (sorted(position[core] for core in cache.cores if core in position) for cache in self.caches)
        return {
            "structure": STRUCTURE,
            "name": self.name,
            "cores": [[len(c.cpus), *where] for c, *where in zip(self.cores, groups, nodes, sockets, strict=True)],
            "speeds": [
                round(math.log(core.max_hz, SPEEDS)) if core.max_hz and core.max_hz > 0 else None for core in self.cores
            ],
            "caches": sorted([c.level, c.size_bytes, own] for c, own in zip(self.caches, sharers, strict=True)),
        }

    def cases(self) -> tuple[Case, ...]:
        """The legal ways to run one op, by thread count, COMPACT before SPREAD; no two place threads in the same way.

        SPREAD goes up to one thread for each cache group. COMPACT fills groups, small ones only whole (`SMALL_GROUP`).
        With a single group there is one affinity, COMPACT. On 34 tiles of two cores these are the 68 cases of Liu et
        al. 2018, III-B.
        """
        return self.only or _cases(self._group_sizes)

    def cases_with(self, counts: Iterable[int]) -> tuple[Case, ...]:
        """The machine's cases; of these counts, as far as there are so many cores, those that it lacks are COMPACT."""
        further = {count for count in counts if count <= len(self)} - {case.threads for case in self.cases()}
        return tuple(sorted([*self.cases(), *map(Case, further)]))

    def place(self, case: Case) -> tuple[int, ...]:
        """Core ids that `case` uses on an otherwise idle machine, one for each thread.

        InvalidInput if it needs more.
        """
        self.require(case)
        if case.affinity is Affinity.SPREAD:
            order: list[int] = [group[0] for group in self.groups]
        else:
            order = [core for group in self.groups for core in group]
        return tuple(order[: case.threads])

    def require(self, case: Case) -> None:
        """Raise InvalidInput where `case` needs more cores than there are, or under SPREAD more cache groups."""
        if lacking := self._lacks(case):
            raise InvalidInput(f"threads={case.threads} {case.affinity} exceeds the {lacking} of {self.name}")

    def _lacks(self, case: Case) -> str:
        """How many there are of what `case` needs more of, in words; empty where there are enough."""
        spread = case.affinity is Affinity.SPREAD
        most = len(self._group_sizes if spread else self.cores)
        return f"{most} {'cache groups' if spread else 'usable cores'}" if case.threads > most else ""

    def cpus(self, cores: Iterable[int], *, hardware_thread: int = 0) -> tuple[int, ...]:
        """The kernel's CPU numbers of these core ids; InvalidInput for a core that the machine lacks.

        `hardware_thread` 1 selects the second hardware thread of each core; a core with fewer gives its last one.
        """
        by_id = {core.id: core for core in self.cores}
        cores = tuple(cores)
        unknown = [core for core in cores if core not in by_id]
        if unknown:
            raise InvalidInput(f"cores {unknown} are not among those of {self.name}")
        return tuple(by_id[c].cpus[min(hardware_thread, len(by_id[c].cpus) - 1)] for c in cores)

    def limited_to(self, cores: Iterable[int]) -> Machine:
        """The same machine with only these cores.

        Where caches are known, cache groups are computed again: two cores of one tile have no cache that only some
        cores share.
        """
        keep = set(cores)
        unknown = keep - {core.id for core in self.cores}
        if unknown:
            raise InvalidInput(f"cores {sorted(unknown)} are not among those of {self.name}")
        remaining = [core for core in self.cores if core.id in keep]
        if not self.caches:
            return replace(self, cores=tuple(remaining))
        caches = tuple(
            replace(cache, cores=sharers)
            for cache in self.caches
            if (sharers := tuple(core for core in cache.cores if core in keep))
        )
        grouped = tuple(
            replace(core, group=g) for core, g in zip(remaining, cache_groups(remaining, caches), strict=True)
        )
        return replace(self, cores=grouped, caches=caches)

    @classmethod
    def uniform(cls, name: str, cores: int, *, group_size: int | None = None, threads_per_core: int = 1) -> Machine:
        """Describe a machine of equal cores, with `group_size` cores to a shared cache (None: one group of all)."""
        if not 1 <= cores <= MAX_CORES:
            raise InvalidInput(f"cores={cores}: a described machine has at least 1 and at most {MAX_CORES}")
        size = group_size or cores
        equal_cores = tuple(
            Core(i, tuple(i + t * cores for t in range(threads_per_core)), group=i // size) for i in range(cores)
        )
        return cls(name, equal_cores)

    def to_json(self) -> dict[str, Any]:
        """Everything but the fingerprint, as JSON; "cases" where the machine has `only` some."""
        return {
            "schema": SCHEMA, "name": self.name,
            "cores": [[c.id, list(c.cpus), c.group, c.node, c.socket, c.max_hz] for c in self.cores],
            "caches": [[c.level, c.size_bytes, list(c.cores)] for c in self.caches],
            **({"cases": [[case.threads, case.affinity.value] for case in self.only]} if self.only else {}),
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any, *, pointer: str = "") -> Machine:
        """Read what `to_json` writes; FormatError with a JSON pointer below `pointer` to whatever is wrong.

        `schema` may be missing; members that this version does not know are left out.
        """
        if isinstance(document, dict) and "schema" in document:
            check_schema(document, SCHEMA, pointer=pointer)
        name = member(document, "name", str, pointer=pointer)
        cores, caches = [], []
        for i, entry in enumerate(member(document, "cores", list, pointer=pointer)):
            match entry:
                case [core_id, [*cpus], group, node, socket, None | int() | float() as max_hz] if _all_integers(
                    [core_id, *cpus, group, node, socket]
                ) and _is_frequency(max_hz):
                    cores.append(Core(core_id, tuple(cpus), group, node, socket, max_hz))
                case _:
                    what = "a core must be [id, [cpu, ...], group, node, socket, max_hz]"
                    raise FormatError(f"{what}, got {entry!r}", pointer=f"{pointer}/cores/{i}")
        for i, entry in enumerate(member(document, "caches", list, pointer=pointer, default=[])):
            match entry:
                case [level, size, [*shared]] if _all_integers([level, size, *shared]):
                    caches.append(Cache(level, size, tuple(shared)))
                case _:
                    what = "a cache must be [level, size_bytes, [core id, ...]]"
                    raise FormatError(f"{what}, got {entry!r}", pointer=f"{pointer}/caches/{i}")
        only = []
        for i, entry in enumerate(member(document, "cases", list, pointer=pointer, default=[])):
            match entry:
                case [int() as threads, "compact" | "spread" as affinity] if threads > 0 and threads is not True:
                    only.append(Case(threads, Affinity(affinity)))
                case _:
                    what = "a case must be [threads, affinity]"
                    raise FormatError(f"{what}, got {entry!r}", pointer=f"{pointer}/cases/{i}")
        try:
            machine = cls(name, tuple(cores), tuple(caches), tuple(only))
        except InvalidInput as error:
            raise FormatError(str(error), pointer=f"{pointer}/cores") from error
        for i, case in enumerate(only):
            if lacking := machine._lacks(case):
                raise FormatError(f"{case} exceeds the {lacking}", pointer=f"{pointer}/cases/{i}")
        return machine

    @classmethod
    def described(cls, document: Any, *, pointer: str = "") -> Machine:
        """Read a description that somebody gives; FormatError also for cores without a CPU, and for frequencies that no
        core has."""
        machine = cls.from_json(document, pointer=pointer)
        for i, core in enumerate(machine.cores):
            if not core.cpus:
                raise FormatError(f"core {core.id} has no CPU", pointer=f"{pointer}/cores/{i}")
            if core.max_hz is not None and not LEAST_HZ <= core.max_hz <= MOST_HZ:
                limits = f"null or from {LEAST_HZ:g} to {MOST_HZ:g}"
                raise FormatError(f"max_hz={core.max_hz:g} must be {limits}", pointer=f"{pointer}/cores/{i}")
        return machine


def _numbered(values: Iterable[int]) -> list[int]:
    """The number of each value, in the order in which they first appear."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _all_integers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _is_frequency(value: float | None) -> bool:
    return value is None or (not isinstance(value, bool) and math.isfinite(value))


def cache_groups(cores: Sequence[Core], caches: Iterable[Cache]) -> tuple[int, ...]:
    """The cache group of each core, numbered in order of appearance.

    The innermost level with a cache that some but not all cores share forms the groups; cores that share no cache of
    that level (performance cores beside clusters of small ones) are groups of one. Without such a level there is one
    group.
    """
    ids = {core.id for core in cores}
    by_level: dict[int, list[set[int]]] = {}
    for cache in caches:
        by_level.setdefault(cache.level, []).append(ids.intersection(cache.cores))
    for _, shared in sorted(by_level.items()):
        if any(1 < len(sharers) < len(ids) for sharers in shared):
            leader = {core: min(sharers) for sharers in shared for core in sharers}
            return tuple(_numbered(leader.get(core.id, core.id) for core in cores))
    return (0,) * len(cores)


@lru_cache(maxsize=64)
def _cases(sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """`Machine.cases` of cache groups of these sizes, cached: climbs and campaigns ask for it at every step.

    The key is all that the cases depend on. A fingerprint is not: two machines may share one by chance, or on purpose.
    """
    spread = {Case(n, Affinity.SPREAD) for n in range(1, len(sizes) + 1)} if len(sizes) > 1 else set()
    compact, filled = set(), 0
    for size in sizes:
        whole = 1 < size <= SMALL_GROUP and len(sizes) > 1
        counts = [size] if whole else range(1, size + 1)
        compact |= {Case(filled + n) for n in counts}
        filled += size
    alone = next((i for i, size in enumerate(sizes) if size > 1), len(sizes) - 1) + 1
    same = {Case(case.threads) for case in spread if case.threads <= alone}  # both affinities take the same cores
    return tuple(sorted(spread | compact - same))
