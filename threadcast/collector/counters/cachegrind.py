"""A slow, simulated source of counts for machines without hardware counters: valgrind's cache simulator.

The op runs alone on one thread in a process under valgrind, about 50 times slower than without it. Simulated are two
levels of caches of the machine's sizes and a simple branch predictor: counts of instructions are exact, counts of
misses are those of a model. The simulator is cachegrind's. It is run by callgrind, which contains it, because
cachegrind would simulate the import of torch as well (73 s against 17 s of one core, valgrind 3.19).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from threadcast.core import Machine, Measurement, Op, Sample
from threadcast.core.errors import CounterUnavailable, InvalidInput, MeasurementError

PREFIX = "cachegrind."

_LINE_BYTES = 64
_MIN_WAYS = 8

_EVENTS = {
    "instructions": ("Ir",),
    "l1d_loads": ("Dr",),
    "l1d_stores": ("Dw",),
    "l1d_load_misses": ("D1mr",),
    "l1d_store_misses": ("D1mw",),
    "llc_load_misses": ("DLmr",),
    "llc_store_misses": ("DLmw",),
    "branches": ("Bc", "Bi"),
    "branch_misses": ("Bcm", "Bim"),
}
"""By name of a count, without the prefix, the simulator's events that add up to it."""


def simulate(op: Op, *, machine: Machine | None = None, runs: int = 2, timeout_s: float = 600.0) -> dict[str, float]:
    """Counts of one run of `op` on one thread with warm caches, by names that begin with "cachegrind.".

    `machine` gives the sizes of the caches (None: valgrind asks the processor). Counts are the difference between
    twice `runs` runs and `runs` runs, divided by `runs`, so that starting and stopping the simulation do not count.

    Raises CounterUnavailable without valgrind or on a processor other than x86-64, MeasurementError where the op
    cannot be run there or takes longer than `timeout_s`.
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs} must be at least 1")
    valgrind = _find_valgrind()
    with tempfile.TemporaryDirectory(prefix="threadcast-cachegrind-") as folder:
        output = Path(folder) / "counts"
        command = [
            valgrind, "--tool=callgrind", "--quiet", "--instr-atstart=no", "--cache-sim=yes", "--branch-sim=yes",
            f"--callgrind-out-file={output}", *(_cache_options(machine) if machine else ()),
            sys.executable, "-m", "threadcast.collector.counters.simulated_run", str(runs),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                command, input=json.dumps(op.to_json()), env=environment, capture_output=True, text=True,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"simulating {op.key} took longer than timeout_s={timeout_s:g}") from None
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise MeasurementError(f"{op.key} cannot be run under valgrind (exit code {done.returncode}): {said}")
        once, twice = (read_counts(output.with_name(f"{output.name}.{part}").read_text()) for part in (1, 2))
    return {f"{PREFIX}{name}": max(twice[name] - once[name], 0) / runs for name in _EVENTS}


def add_counts(measurement: Measurement, counts: Mapping[str, float]) -> Measurement:
    """The measurement with simulated counts added to the counters of each of its samples."""
    samples = tuple(Sample(sample.seconds, {**sample.counters, **counts}) for sample in measurement.samples)
    return replace(measurement, samples=samples)


def read_counts(text: str) -> dict[str, int]:
    """Counts by the names of threadcast, from the text of a file that callgrind wrote.

    MeasurementError for another text.
    """
    fields = dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(("events: ", "summary: ")))
    try:
        events = dict(zip(fields["events"].split(), map(int, fields["summary"].split()), strict=True))
        return {name: sum(events[part] for part in parts) for name, parts in _EVENTS.items()}
    except (KeyError, ValueError) as error:
        raise MeasurementError(f"callgrind wrote a file that cannot be read: {error!r}") from error


def _find_valgrind() -> str:
    found = shutil.which("valgrind")
    if found is None:
        raise CounterUnavailable(
            "cachegrind counts need valgrind; install it (apt install valgrind, dnf install valgrind)"
        )
    if platform.machine() != "x86_64":
        raise CounterUnavailable(f"cachegrind counts are for x86_64 processors, this is {platform.machine()}")
    return found


def _cache_options(machine: Machine) -> list[str]:
    """Options for the first and the last level of cache that the first core uses."""
    levels = sorted((cache.level, cache.size_bytes) for cache in machine.caches if machine.cores[0].id in cache.cores)
    options = []
    if levels and levels[0][0] == 1:
        options.append(f"--D1={_geometry(levels[0][1])}")
    if levels and levels[-1][0] > 1:
        options.append(f"--LL={_geometry(levels[-1][1])}")
    return options


def _geometry(size_bytes: int) -> str:
    """Size in bytes, ways and line size of a cache, as an option's text: the most sets (a power of two) with 8 ways or
    more."""
    lines = max(size_bytes // _LINE_BYTES, _MIN_WAYS)
    sets = lines & -lines
    while lines // sets < _MIN_WAYS:
        sets //= 2
    return f"{lines * _LINE_BYTES},{lines // sets},{_LINE_BYTES}"
