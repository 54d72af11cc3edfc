"""Builds the backends for a captured forward pass, one after the other, the likeliest first; `BackendSearch` starts it.

`main` has the file descriptor of programs and a folder as arguments. It begins when it reads `BEGIN` and the
options as a line of JSON from its standard input, as soon as a program is in the file. It writes one JSON document a
line to its standard output: a way that is built, checked and timed, something that is left out, or that it wants a
turn. A turn is a moment in which the caller computes nothing, so that times are right. Without one they are taken as
soon as it was refused or not given in time.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError
from threadcast.core.settings import Settings
from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.index_ranges import IndexRanges, index_ranges
from threadcast.runtime.backends.library_facts import LibraryFacts, lost_after_products
from threadcast.runtime.backends.number_guard import Range
from threadcast.runtime.backends.onnx_libraries import requests, sessions, write_optimised
from threadcast.runtime.backends.probes import Probes
from threadcast.runtime.backends.program_file import ReadProgram, read_program
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.backends.way_store import WayStore, name_of
from threadcast.runtime.backends.ways import Way
from threadcast.runtime.backends.written_out import written_out
from threadcast.runtime.plans.backend_history import PROGRAM, BackendHistory, NetworkKind, Shape
from threadcast.threads.memory import keep_freed_memory, return_freed_memory

BEGIN, GRANTED, REFUSED, DONE, ABANDONED = b"bgrdx"
"""Bytes on the standard input: the program is written; a turn is given; it is not; nothing more is needed of what was
built for the last program; no program will come."""
IDLE_S = 60.0
"""Seconds without a program after which the process ends."""
TURN_S = 0.15
"""Seconds of a turn in which the ways of one backend are compared with each other and with PyTorch."""
GRANT_S = 2.0
"""Longest wait for a turn: a caller that runs no step for so long leaves the cores idle."""
WAITING = 0.2
"""Seconds for which threads were ready and got no core, over the seconds of a comparison, from which on other work has
disturbed it: then the setting with most threads is reported, whatever its time."""

LONG_S = 0.01
"""Seconds of a call from which on only the first setting of a backend is tried: on all cores, op by op. Of 113 models
and graphs of the pages for `bench-zoo` and `bench-graphnet` one ran fastest in another, whose call takes 0.9 ms."""

_NEEDED_FIRST = "torch.onnx._internal.exporter._core", "onnxscript", "openvino"
"""What is imported while no program has come yet: it takes seconds, and most programs need it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is searched: backends among `among`, for `cores` cores and a network of this kind. `history` is a path.

    A way is reported if its call takes up to `close` times the seconds of the fastest that is known, or of PyTorch's.
    The search keeps to `cpus` (None: to those of its caller), stores the fastest way by `key`, and keeps freed memory
    if its caller does: PyTorch, to which backends are compared, may take two and a half times as long without (Depth
    Anything). What was found for the same network tells what to try first (`shape`).
    """

    among: list[str]
    cores: int
    kind: NetworkKind
    close: float
    history: str | None
    cpus: list[int] | None = None
    keeps_memory: bool = False
    key: str = ""
    shape: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A way to run the program from a file, with the seconds of a call and of opening it.

    `gain` is the ratio of PyTorch's seconds to its own; None where other work disturbed the comparison. `integers` are
    the ranges in which the integers of the program's arguments must be; None for others.
    """

    way: Way
    file: str
    call_s: float
    open_s: float
    integers: Sequence[Range | None] = ()
    gain: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return what `asdict` has made JSON of."""
        integers = [one and Range(*one) for one in document["integers"]]
        return cls(**{**document, "way": Way(*document["way"]), "integers": integers})


@dataclass(frozen=True, slots=True)
class _Times:
    """Least seconds of a call of each way, of time or of CPU time; None is PyTorch. `calm`: nothing else ran."""

    call_s: dict[Way | None, float]
    calm: bool


def opened(way: Way, file: Path, cores: int, flat: FlatModule) -> TensorCall:
    """Return the call of a way that this module has built into `file` for the program of `flat`."""
    if way.backend == "onnxruntime":
        return sessions(file, cores)[way.setting]()
    if way.backend != "openvino":
        return package_call(file, flat.tensors(flat.example))
    return requests(file, cores)[way.setting]()


class Caller:
    """The process that started this one, at the other end of the standard input and output."""

    def __init__(self, folder: Path) -> None:
        self._idle = folder / search_guard.IDLE
        self._messages = os.dup(1)
        os.dup2(2, 1)  # what libraries print must not look like a message

    def send(self, **message: Any) -> None:
        """Write a message."""
        os.write(self._messages, json.dumps(message).encode() + b"\n")

    def wait_for_program(self, *, first: bool = False) -> Options:
        """Return the options of the next program as soon as it is written; exit where none comes for long.

        What was built for a program before may be opened until the caller says that it is done.
        """
        coming, timeout_ms = select.poll(), IDLE_S * 1e3 if first else None
        coming.register(0, select.POLLIN)
        for library in _NEEDED_FIRST:
            if not coming.poll(0):
                with suppress(ImportError):
                    importlib.import_module(library)
        while coming.poll(timeout_ms):
            told = os.read(0, 1)
            if not told or told[0] == ABANDONED:
                break
            if told[0] == DONE:
                timeout_ms = IDLE_S * 1e3
            if told[0] == BEGIN:
                self._idle.unlink(missing_ok=True)
                self.send(begun=True)
                return Options(**json.loads(b"".join(iter(lambda: os.read(0, 1), b"\n"))))
        sys.exit(search_guard.NOTHING_TO_DO)

    def end_program(self) -> None:
        """Tell that all was built, and that this process computes nothing from now on."""
        self._idle.touch()
        self.send(over=True)

    def in_turn(self, measure: Callable[[], Any]) -> Any:
        """Return what `measure` returns, run while the caller computes nothing, or after `GRANT_S` seconds."""
        answered = select.poll()
        answered.register(0, select.POLLIN)
        while answered.poll(0) and os.read(0, 1):
            pass  # an answer that came too late
        self.send(turn_s=TURN_S)
        if answered.poll(GRANT_S * 1e3):
            os.read(0, 1)
        try:
            return measure()
        finally:
            self.send(turned=True)


class Search:
    """Builds, checks and times the backends for one program in a folder."""

    def __init__(
        self, program: ReadProgram, options: Options, folder: Path, caller: Caller, *, began_s: float = 0.0
    ) -> None:
        self._options, self._folder, self._caller = options, folder, caller
        self._read = program
        arguments = enumerate(program.example)
        self._infinite = [at for at, one in arguments if one.is_floating_point() and bool(one.isinf().any())]
        self._flat = FlatModule(program.module, (program.example, {}))
        self._program_exported: ExportedProgram | None = None
        self._indices: IndexRanges | None = None
        self._asked_probes: Probes | None = None
        self._libraries = LibraryFacts(Settings.read()["engine.cache"] / "libraries")
        self._best_s = float("inf")
        self._built: dict[str, Built] = {}
        self._stored: str | None = None
        """The backend whose way is stored."""
        self._found: dict[str, float] = {}
        """Seconds of each backend's call over PyTorch's."""
        self._shares: dict[str, float] = {}
        """Those that no other work has disturbed."""
        self._costs_s = {PROGRAM: _cpu_s() - began_s}

    @property
    def history(self) -> Path | None:
        """The file of what earlier searches found; None: nothing is stored."""
        path = self._options.history
        return None if path is None else Path(path)

    def run(self, history: BackendHistory) -> None:
        """Report the fastest way of each backend as soon as it is known; build none that is expected to be slower."""
        kind, shape, failed = self._options.kind, Shape(*self._options.shape), list[str]()
        for backend in history.ordered(self._options.among, kind, shape):
            most, best = history.forecast(backend, kind, self._found, shape).most, 1 / min([1.0, *self._found.values()])
            if most <= best:
                self._leave_out(backend, f"it is expected to gain {most:.3g} at most, and {best:.3g} is gained already")
                continue
            before_s = _cpu_s() - self._costs_s[PROGRAM]
            try:
                self._try(backend)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others remain
                self._leave_out(backend, error)
            if backend not in self._found:
                failed.append(backend)
            self._costs_s[backend] = _cpu_s() - self._costs_s[PROGRAM] - before_s
            self._store()
            return_freed_memory()
        history.add(kind, self._shares, self._costs_s, shape=shape, failed=failed)

    def _store(self) -> None:
        """Keep the fastest way so far for later processes: this one may end before all are built."""
        options, fastest = self._options, min(self._built, key=self._found.__getitem__, default=None)
        if fastest is None or fastest == self._stored or not options.key or options.history is None:
            return
        store, weights = WayStore(Path(options.history).with_name(WAYS)), self._read.weights_digest()
        if self._stored is not None:
            store.drop(name_of(options.key, weights, self._infinite))
        self._stored = fastest
        store.write(options.key, asdict(self._built[fastest]), weights, self._infinite)

    def _try(self, backend: str) -> None:
        built: dict[Way, tuple[Path, TensorCall, float]] = {}
        known = self._libraries.stored(backend) is not None
        reason = self._refused() or (self._differs(backend) if known else None)
        if reason is not None:
            self._leave_out(backend, reason)
            return
        began_s = time.process_time()
        if backend != "torch.compile":
            importlib.import_module(backend)
        import_s = time.process_time() - began_s
        for way, file in self._files(backend):
            began_s = time.process_time()
            try:
                call = opened(way, file, self._options.cores, self._flat)
                open_s = time.process_time() - began_s
                self._flat.check(call)
            except Exception as error:  # noqa: BLE001 - likewise
                self._leave_out(way, error)
            else:
                built[way] = file, call, import_s + open_s
                if len(built) == 1 and self._is_long(call):
                    break
        if not built:
            return
        times = self._times({way: call for way, (_, call, _) in built.items()})
        reference_s = times.call_s.pop(None)
        way = min(built, key=times.call_s.__getitem__) if times.calm else next(iter(built))
        call_s = times.call_s[way]
        self._found[backend] = call_s / reference_s
        best_s = min(self._best_s, reference_s, call_s) if times.calm else self._best_s
        if times.calm:
            self._shares[backend] = call_s / reference_s
            if call_s > self._options.close * best_s:
                self._best_s = min(self._best_s, reference_s)
                self._leave_out(way, f"{call_s:.3g} s a call; the fastest so far takes {best_s:.3g} s")
                return
        if not known and (reason := self._differs(backend)) is not None:
            self._leave_out(backend, reason)
            return
        file, call, open_s = built[way]
        if (reason := self._probes.disagreement(call)) is not None:
            self._leave_out(backend, reason)
            return
        self._best_s = best_s
        gain = reference_s / call_s if times.calm else None
        self._built[backend] = Built(way, str(file), call_s, open_s, self._integers.arguments, gain)
        self._caller.send(built=asdict(self._built[backend]))

    def _is_long(self, call: TensorCall) -> bool:
        """Whether a call takes so long that no other setting is likely to be faster: once by far, or three times."""
        for _ in range(3):
            began_s = time.perf_counter()
            call(self._read.example)
            taken_s = time.perf_counter() - began_s
            if not LONG_S < taken_s <= 10 * LONG_S:
                return taken_s > LONG_S
        return True

    def _files(self, backend: str) -> Iterator[tuple[Way, Path]]:
        """Yield the ways of a backend and the file of each."""
        cores = self._options.cores
        if backend == "torch.compile":
            with self._for_all():
                program = self._program()
            yield Way(backend, ""), write_package(program, self._folder, cores, freezing=self._freezes)
            return
        file = self._folder / "model.onnx"
        if not file.exists():
            with self._for_all():
                write_onnx(self._program(), file)
        if backend == "onnxruntime":
            file = write_optimised(file)
        settings = sessions(file, cores) if backend == "onnxruntime" else requests(file, cores)
        yield from ((Way(backend, setting), file) for setting in settings)

    @property
    def _integers(self) -> IndexRanges:
        if self._indices is None:
            self._indices = index_ranges(self._read)
        return self._indices

    @property
    def _probes(self) -> Probes:
        if self._asked_probes is None:
            self._asked_probes = Probes(self._read, self._integers.arguments)
        return self._asked_probes

    def _refused(self) -> str | None:
        """Why no backend may run the program."""
        name = self._integers.refused or self._probes.refused()
        return None if name is None else f"{name} may raise, or be computed otherwise, because of values"

    def _differs(self, backend: str) -> str | None:
        """What a backend computes otherwise, as it says itself."""
        fused = lost_after_products() if backend == "torch.compile" and self._freezes else ()
        facts = self._libraries.asked(backend)
        if not facts.found:
            return "it gives no answer about what its operators compute on this machine"
        return self._probes.lost_by(facts, fused)

    @property
    def _freezes(self) -> bool:
        """Whether Inductor builds the weights in."""
        return self._options.kind == "convolutions"

    @contextmanager
    def _for_all(self) -> Iterator[None]:
        """Count what is done for all backends."""
        before_s = _cpu_s()
        try:
            yield
        finally:
            self._costs_s[PROGRAM] += _cpu_s() - before_s

    def _program(self) -> ExportedProgram:
        if self._program_exported is None:
            self._program_exported = _exported(self._read)
        return self._program_exported

    def _times(self, calls: Mapping[Way, TensorCall]) -> _Times:
        """Time a call of each way, and of the program in PyTorch (None). They run by turns."""
        runs: dict[Way | None, Callable[[], object]] = {None: lambda: self._read.module(*self._read.example)}
        for way, call in calls.items():
            runs[way] = partial(call, self._read.example)
        for run in (*runs.values(), *runs.values()):
            run()  # finds its threads asleep and its caches cold

        def measure() -> _Times:
            least_s = dict.fromkeys(runs, float("inf"))
            began_s, waited_s = time.perf_counter(), _waited_s()
            while True:
                for way, run in runs.items():
                    before_s, before_cpu_s = time.perf_counter(), time.process_time()
                    run()
                    now_s, cpu_s = time.perf_counter(), time.process_time() - before_cpu_s
                    # Once in some 100,000 calls the kernel's clock of CPU time stands still, which would be the least.
                    least_s[way] = min(least_s[way], now_s - before_s, cpu_s if cpu_s > 0 else math.inf)
                if now_s - began_s >= TURN_S:
                    return _Times(least_s, _waited_s() - waited_s < WAITING * (now_s - began_s))

        found: _Times = self._caller.in_turn(measure)
        return found

    def _leave_out(self, what: object, reason: object) -> None:
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        self._caller.send(left_out=str(what), reason=lines[0])


def _exported(program: ReadProgram) -> ExportedProgram:
    return torch.export.export(written_out(program.module), program.example)


def _cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has run."""
    return sum(os.times()[:4])


def _waited_s() -> float:
    """Seconds for which this process's threads were ready and got no core, all together; 0 where Linux does not say."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns * 1e-9


def take_conditions(options: Options) -> None:
    """Take on the conditions of the caller's steps: CPUs, threads, and what happens to freed memory."""
    if options.cpus is not None:
        os.sched_setaffinity(0, options.cpus)
    torch.set_num_threads(options.cores)
    if options.keeps_memory:
        keep_freed_memory()


def main(file: str, folder: str) -> None:
    """Search for one program after another, and tell the caller on the standard output."""
    caller, place = Caller(Path(folder)), Path(folder)
    for number in count():
        options, own = caller.wait_for_program(first=not number), place / str(number)
        shutil.rmtree(place / str(number - 1), ignore_errors=True)
        take_conditions(options)
        own.mkdir()
        _search(int(file), options, own, caller)
        gc.collect()
        return_freed_memory()
        caller.end_program()


def _search(file: int, options: Options, folder: Path, caller: Caller) -> None:
    with torch.no_grad():
        try:
            search = Search(read_program(file), options, folder, caller, began_s=_cpu_s())
        except CaptureError as error:
            caller.send(left_out="every backend", reason=str(error))
        else:
            search.run(BackendHistory(search.history))
