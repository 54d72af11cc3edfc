"""Builds the backends for one program, one after the other, the likeliest first; checks them, and times their calls."""

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch.export import ExportedProgram

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.compiled import package_call, write_package
from threadcast.runtime.backends.exported import write_onnx
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.index_ranges import IndexRanges, index_ranges
from threadcast.runtime.backends.inside import Inside
from threadcast.runtime.backends.onnx_libraries import request, session, write_optimised
from threadcast.runtime.backends.probes import Probes
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.backends.way_store import WayStore, name_of
from threadcast.runtime.backends.ways import Built, Options, Way
from threadcast.runtime.backends.written_out import written_out
from threadcast.runtime.plans.backend_history import PROGRAM, BackendHistory, Shape
from threadcast.threads.memory import return_freed_memory

COMPARED_S = 0.15
"""Seconds in which a backend is compared with PyTorch."""
WAITING = 0.2
"""Seconds for which threads were ready and got no core, over the seconds of a comparison, from which on other work has
disturbed it: then the backend is reported whatever its time, and the caller compares."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Least seconds of a call of a backend and of PyTorch, of time or of CPU time. `calm`: nothing else ran."""

    call_s: float
    eager_s: float
    calm: bool


def opened(way: Way, file: Path, cores: int, flat: FlatModule) -> TensorCall:
    """Return the call of a way that this module has built into `file` for the program of `flat`."""
    if way.backend == "onnxruntime":
        return session(file, cores)
    if way.backend != "openvino":
        return package_call(file, flat.tensors(flat.example))
    return request(file, cores)


class Search:
    """Builds, checks and times the backends for one program in a folder; `send` takes what there is to tell."""

    def __init__(
        self, program: ReadProgram, options: Options, folder: Path, send: Callable[..., None], *, began_s: float = 0.0
    ) -> None:
        self._options, self._folder, self._send = options, folder, send
        self._read = program
        arguments = enumerate(program.example)
        self._infinite = [at for at, one in arguments if one.is_floating_point() and bool(one.isinf().any())]
        self._flat = FlatModule(program.module, (program.example, {}))
        self._program_exported: ExportedProgram | None = None
        self._inside = Inside(program)
        self._best_s = float("inf")
        self._built: dict[str, Built] = {}
        self._stored: str | None = None
        """The backend whose way is stored."""
        self._found: dict[str, float] = {}
        """Seconds of each backend's call over PyTorch's."""
        self._shares: dict[str, float] = {}
        """Those that no other work has disturbed."""
        self._costs_s = {PROGRAM: cpu_s() - began_s}

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
            before_s = cpu_s() - self._costs_s[PROGRAM]
            try:
                self._try(backend)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others remain
                self._leave_out(backend, error)
            if backend not in self._found:
                failed.append(backend)
            self._costs_s[backend] = cpu_s() - self._costs_s[PROGRAM] - before_s
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
        """Build, check and time a backend, and report it; CaptureError where it may not run the program."""
        reason = self._integers.refused and f"{self._integers.refused} may raise because of values"
        if (reason := reason or self._inside.refused(backend)) is not None:
            raise CaptureError(reason)
        began_s = time.process_time()
        if backend != "torch.compile":
            importlib.import_module(backend)
        import_s = time.process_time() - began_s
        way, file = self._built_by(backend)
        began_s = time.process_time()
        call = opened(way, file, self._options.cores, self._flat)
        open_s = import_s + time.process_time() - began_s
        self._flat.check(call)
        times = self._times(call)
        fastest_s = min(self._best_s, times.eager_s)
        is_slow = times.calm and times.call_s > self._options.close * fastest_s
        if not is_slow and (reason := self._probes.disagreement(call)) is not None:
            raise CaptureError(reason)
        self._found[backend] = share = times.call_s / times.eager_s
        if times.calm:
            self._shares[backend], self._best_s = share, min(fastest_s, times.call_s)
        if is_slow:
            self._leave_out(way, f"{times.call_s:.3g} s a call; the fastest so far takes {fastest_s:.3g} s")
            return
        gain = 1 / share if times.calm else None
        self._built[backend] = Built(way, str(file), times.call_s, open_s, self._integers.arguments, gain)
        self._send(built=asdict(self._built[backend]))

    def _built_by(self, backend: str) -> tuple[Way, Path]:
        """Build the way of a backend; return it and its file."""
        cores = self._options.cores
        if backend == "torch.compile":
            with self._for_all():
                program = self._program()
            freezes = self._options.kind == "convolutions"
            return Way(backend, ""), write_package(program, self._folder, cores, freezing=freezes)
        file = self._folder / "model.onnx"
        if not file.exists():
            with self._for_all():
                write_onnx(self._program(), file)
        if backend == "onnxruntime":
            file = write_optimised(file)
        return Way(backend, f"{cores} threads"), file

    @cached_property
    def _integers(self) -> IndexRanges:
        return index_ranges(self._read)

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._read, self._integers.arguments)

    @contextmanager
    def _for_all(self) -> Iterator[None]:
        """Count what is done for all backends."""
        before_s = cpu_s()
        try:
            yield
        finally:
            self._costs_s[PROGRAM] += cpu_s() - before_s

    def _program(self) -> ExportedProgram:
        if self._program_exported is None:
            self._program_exported = _exported(self._read)
        return self._program_exported

    def _times(self, call: TensorCall) -> _Times:
        """Time a call of a backend, and of the program in PyTorch. They run by turns."""
        runs: list[Callable[[], object]] = [
            partial(call, self._read.example), lambda: self._read.module(*self._read.example)
        ]  # fmt: skip
        for run in runs * 2:
            run()  # finds its threads asleep and its caches cold
        least_s = [math.inf, math.inf]
        began_s, waited_s, passed_s = time.perf_counter(), _waited_s(), 0.0
        while passed_s < COMPARED_S:
            for at, run in enumerate(runs):
                before_s, before_cpu_s = time.perf_counter(), time.process_time()
                run()
                now_s, cpu_s = time.perf_counter(), time.process_time() - before_cpu_s
                # Once in some 100,000 calls the kernel's clock of CPU time stands still, which would be the least.
                least_s[at] = min(least_s[at], now_s - before_s, cpu_s if cpu_s > 0 else math.inf)
            passed_s = now_s - began_s
        return _Times(least_s[0], least_s[1], _waited_s() - waited_s < WAITING * passed_s)

    def _leave_out(self, what: object, reason: object) -> None:
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        self._send(left_out=str(what), reason=lines[0])


def _exported(program: ReadProgram) -> ExportedProgram:
    return torch.export.export(written_out(program.module), program.example)


def cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has run."""
    return sum(os.times()[:4])


def _waited_s() -> float:
    """Seconds for which this process's threads were ready and got no core, all together; 0 where Linux does not say."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns * 1e-9
