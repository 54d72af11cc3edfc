"""Three micro-benchmarks of a machine for the roofline model: compute, memory bandwidth, fork-join cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from threadcast.core import Machine
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema, finite, member, number
from threadcast.core.read_only import made_anew

SCHEMA = "threadcast.calibration/1"

MATRIX_SIDE = 512
"""Side of the float32 matrices whose product measures compute: 3 MiB in all, large enough for the fastest kernels."""

MEMORY_BYTES = 192 * 2**20
"""Least working set, in bytes, to measure memory bandwidth; where the last cache is larger than a quarter of it, four
times that cache."""

INNERMOST_CACHE = 2
"""Lowest cache level that is measured: an addition whose data fit into level 1 takes less time than the call."""

GRAIN_ELEMENTS = 32_768
"""For each further so many elements torch wakes one more thread (`at::internal::GRAIN_SIZE`, torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measured limits of one machine. `machine` is its fingerprint.

    `core_flops_per_s`: flops a second of one core in float32. `core_bytes_per_s`, `all_bytes_per_s`: bytes a second
    from memory, of one core and of all together. `cache_bytes_per_s`: by cache level, from 2 on, bytes a second of one
    core from that cache, where its size is known. `fork_join_s`: by number of threads, seconds of a call: at 1 the call
    itself, at more this plus starting and joining the team.
    """

    machine: str
    core_flops_per_s: float
    core_bytes_per_s: float
    all_bytes_per_s: float
    fork_join_s: Mapping[int, float]
    cache_bytes_per_s: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rates = ("core_flops_per_s", "core_bytes_per_s", "all_bytes_per_s")
        for what, value in [(n, getattr(self, n)) for n in rates] + [*self.cache_bytes_per_s.items()]:
            if not 0 < value < math.inf:
                raise InvalidInput(f"{what}={value!r} of a calibration must be finite and above 0")
        if 1 not in self.fork_join_s or any(not 0 <= s < math.inf for s in self.fork_join_s.values()):
            raise InvalidInput(f"fork_join_s={dict(self.fork_join_s)} must have 1 thread, and no time below 0")
        for name in ("fork_join_s", "cache_bytes_per_s"):
            object.__setattr__(self, name, MappingProxyType(dict(sorted(getattr(self, name).items()))))

    __reduce__ = made_anew

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.calibration/1`."""
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "core_flops_per_s": self.core_flops_per_s,
            "core_bytes_per_s": self.core_bytes_per_s,
            "all_bytes_per_s": self.all_bytes_per_s,
            "fork_join_s": {str(threads): s for threads, s in self.fork_join_s.items()},
            "cache_bytes_per_s": {str(level): rate for level, rate in self.cache_bytes_per_s.items()},
        }

    @classmethod
    def from_json(cls, document: Any) -> Calibration:
        """Read what `to_json` writes; FormatError or InvalidInput on anything else."""
        check_schema(document, SCHEMA)
        names = ("core_flops_per_s", "core_bytes_per_s", "all_bytes_per_s")
        core_flops, core_bytes, all_bytes = (number(document, name) for name in names)
        fork_join, cached = (_numbered(document, name) for name in ("fork_join_s", "cache_bytes_per_s"))
        return cls(member(document, "machine", str), core_flops, core_bytes, all_bytes, fork_join, cached)


def _numbered(document: Any, name: str) -> dict[int, float]:
    entries = member(document, name, dict)
    if not all(key.isascii() and key.isdigit() for key in entries):
        raise FormatError(f"the names must be whole numbers, got {', '.join(entries)}", pointer=f"/{name}")
    return {int(key): finite(value, pointer=f"/{name}/{key}") for key, value in entries.items()}


def calibrate(machine: Machine, *, seconds: float = 0.2, clock: Callable[[], float] = time.perf_counter) -> Calibration:
    """Measure `machine`, which this process runs on, with pinned threads; about a dozen numbers take `seconds` each.

    Rates are the best of the batches that fit into `seconds`, because a limit is sought and other load only lowers it.
    Fork-join costs are medians. Run it while the cores are otherwise idle. MeasurementError if torch cannot form thread
    teams.
    """
    from threadcast.threads.affinity import ThreadTeam

    order = [core for group in machine.groups for core in group]
    counts = sorted({*(2**i for i in range(len(order).bit_length())), len(order)})
    last_cache = max((cache.size_bytes for cache in machine.caches), default=0)
    memory_bytes = max(4 * last_cache, MEMORY_BYTES)
    known = [cache for cache in machine.caches if cache.size_bytes and cache.level >= INNERMOST_CACHE]
    levels = {cache.level: cache.size_bytes for cache in known if order[0] in cache.cores}
    fork_join: dict[int, float] = {}
    with ThreadTeam(machine.cpus(order[:1])) as team:
        flops_rate = team.run(partial(_compute_rate, seconds, clock))
        core_rate = team.run(partial(_bandwidth, memory_bytes, seconds, clock))
        cached = {level: team.run(partial(_bandwidth, size // 2, seconds, clock)) for level, size in levels.items()}
        alone_s = team.run(partial(_addition_s, GRAIN_ELEMENTS, seconds, clock))
        fork_join = {1: team.run(partial(_addition_s, 1, seconds, clock))}
    all_rate = core_rate
    for count in counts[1:]:
        with ThreadTeam(machine.cpus(order[:count])) as team:
            together_s = team.run(partial(_addition_s, count * GRAIN_ELEMENTS, seconds, clock))
            fork_join[count] = fork_join[1] + max(together_s - alone_s, 0.0)
            if count == counts[-1]:
                all_rate = team.run(partial(_bandwidth, memory_bytes, seconds, clock))
    return Calibration(machine.fingerprint, flops_rate, core_rate, max(all_rate, core_rate), fork_join, cached)


def _compute_rate(seconds: float, clock: Callable[[], float]) -> float:
    import torch

    left, right = torch.rand(MATRIX_SIDE, MATRIX_SIDE), torch.rand(MATRIX_SIDE, MATRIX_SIDE)
    product = torch.empty(MATRIX_SIDE, MATRIX_SIDE)
    times = _batches(lambda: torch.mm(left, right, out=product), seconds, clock)
    return 2 * MATRIX_SIDE**3 / min(times)


def _bandwidth(working_set_bytes: int, seconds: float, clock: Callable[[], float]) -> float:
    """Bytes a second of c = a + b: two arrays are read and one is written, as `Op.bytes_moved` counts them."""
    import torch

    elements = max(working_set_bytes // 12, 1)
    left, right, total = torch.ones(elements), torch.ones(elements), torch.zeros(elements)
    best_s = min(_batches(lambda: torch.add(left, right, out=total), seconds, clock))
    one = torch.ones(1)
    call_s = min(_batches(lambda: torch.add(one, one, out=one), seconds / 10, clock))
    return 12 * elements / max(best_s - call_s, best_s / 2)  # for a cache, the call is a tenth of the time


def _addition_s(elements: int, seconds: float, clock: Callable[[], float]) -> float:
    import torch

    values = torch.zeros(elements)
    times = sorted(_batches(lambda: values.add_(1.0), seconds, clock))
    return times[len(times) // 2]


def _batches(function: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Mean seconds of one call in each batch of about 1 ms, until `seconds` have passed; the first calls warm up."""
    function()
    started = clock()
    function()
    calls = max(round(1e-3 / max(clock() - started, 1e-9)), 1)
    times: list[float] = []
    end = clock() + seconds
    while not times or clock() < end:
        started = clock()
        for _ in range(calls):
            function()
        times.append((clock() - started) / calls)
    return times
