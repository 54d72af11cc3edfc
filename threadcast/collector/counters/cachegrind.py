"""A slow, simulated source of counts for machines without hardware counters: valgrind's cache simulator.

Ops run on one thread in a process under valgrind, about 50 times slower than without it. Simulated are two
levels of caches of the machine's sizes and a simple branch predictor: counts of instructions are exact, counts of
misses are those of a model. The simulator is cachegrind's. It is run by callgrind, which contains it, because
cachegrind would simulate the import of torch as well (73 s against 17 s of one core, valgrind 3.19).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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

NAMES = frozenset(PREFIX + name for name in _EVENTS)
"""The names of the counts of an op."""


class CacheSimulator:
    """Simulates ops, one after the other, in one process: `with CacheSimulator(machine) as simulator:`.

    `machine` gives the sizes of the caches (None: valgrind asks the processor). The process starts with the first op,
    which takes some 20 s, and ends with the block, or with an op that fails; the next op then starts another. Entering
    raises CounterUnavailable without valgrind or on a processor other than x86-64.
    """

    def __init__(self, machine: Machine | None = None, *, runs: int = 1, timeout_s: float = 600.0) -> None:
        if runs < 1:
            raise InvalidInput(f"runs={runs} must be at least 1")
        self._machine, self._runs, self._timeout_s = machine, runs, timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._valgrind = find_valgrind()
        self._folder = tempfile.TemporaryDirectory(prefix="threadcast-cachegrind-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end()
        finally:
            self._folder.cleanup()

    def counts(self, op: Op) -> dict[str, float]:
        """Counts of one run of `op` on one thread with warm caches, by names that begin with "cachegrind.".

        They are the difference between twice `runs` runs and `runs` runs, divided by `runs`, so that starting and
        stopping the simulation do not count. MeasurementError where the op cannot be run there or takes longer than
        `timeout_s`.
        """
        process = self._process = self._process or self._start()
        try:
            answer = self._ask(process, op)
        except BaseException:
            self._end()
            raise
        if "error" in answer:
            raise MeasurementError(f"{op.key} cannot be simulated: {answer['error']}")
        once, twice = (read_counts(Path(f"{self._output}.{part}").read_text()) for part in answer["parts"])
        return {f"{PREFIX}{name}": max(twice[name] - once[name], 0) / self._runs for name in _EVENTS}

    @property
    def _output(self) -> Path:
        return Path(self._folder.name) / "counts"

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "log"

    def _start(self) -> subprocess.Popen[bytes]:
        for old in self._output.parent.iterdir():
            old.unlink()
        command = [
            self._valgrind, "--tool=callgrind", "--quiet", "--instr-atstart=no", "--cache-sim=yes", "--branch-sim=yes",
            f"--callgrind-out-file={self._output}", *(_cache_options(self._machine) if self._machine else ()),
            sys.executable, "-m", "threadcast.collector.counters.simulated_run", str(self._runs),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        with self._log.open("wb") as log:
            # a session of its own: Ctrl-C is for the caller, who ends it
            return subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=log, env=environment, start_new_session=True
            )

    def _ask(self, process: subprocess.Popen[bytes], op: Op) -> dict[str, Any]:
        requests, answers = process.stdin, process.stdout
        if requests is None or answers is None:  # cannot be: both pipes were requested
            raise MeasurementError("the process under valgrind has no pipes")
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is found when it is read
            requests.write(json.dumps(op.to_json()).encode() + b"\n")
            requests.flush()
        line, end_s = b"", time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end_s - time.monotonic())):
                    raise MeasurementError(f"simulating {op.key} took longer than timeout_s={self._timeout_s:g}")
                part = os.read(answers.fileno(), 1 << 16)
                if not part:
                    raise MeasurementError(
                        f"{op.key} cannot be run under valgrind (exit code {process.wait()}): {self._last_words()}"
                    )
                line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        return (self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with process, contextlib.suppress(BrokenPipeError):  # closes its pipes and waits for its end
            if process.stdin:
                process.stdin.close()  # what it did not read may be in the buffer still


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


def find_valgrind() -> str:
    """The path of valgrind; CounterUnavailable where it or the processor cannot serve."""
    found = shutil.which("valgrind")
    if found is None:
        raise CounterUnavailable(
            "cachegrind counts need valgrind; install it (apt install valgrind, dnf install valgrind)"
        )
    if platform.machine() != "x86_64":
        raise CounterUnavailable(f"cachegrind counts are for x86_64 processors, this is {platform.machine()}")
    return found


def _cache_options(machine: Machine) -> list[str]:
    """Options for the first and the last level of cache that the first core uses, where their sizes are known."""
    levels = sorted((cache.level, cache.size_bytes) for cache in machine.caches if machine.cores[0].id in cache.cores)
    options = []
    if levels and levels[0][0] == 1 and levels[0][1]:
        options.append(f"--D1={_geometry(levels[0][1])}")
    if levels and levels[-1][0] > 1 and levels[-1][1]:
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
