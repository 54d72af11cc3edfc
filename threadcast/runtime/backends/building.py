"""Builds the backends for one program, one after the other, the likeliest first; checks them, and times their calls."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path

from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.exported import Exported, cpu_s
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.index_ranges import IndexRanges, index_ranges
from threadcast.runtime.backends.inside import Inside
from threadcast.runtime.backends.libraries import LIBRARIES
from threadcast.runtime.backends.probes import Probes
from threadcast.runtime.backends.program_file import ReadProgram
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.backends.way_store import WayStore, name_of
from threadcast.runtime.backends.ways import Built, Options
from threadcast.runtime.plans.backend_history import PROGRAM, WORTH, BackendHistory, Shape
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

    @property
    def share(self) -> float:
        """The backend's seconds over PyTorch's."""
        return self.call_s / self.eager_s


class Search:
    """Builds, checks and times the backends for one program in a folder; `send` takes what there is to tell."""

    def __init__(
        self, program: ReadProgram, options: Options, folder: Path, send: Callable[..., None], *, began_s: float = 0.0
    ) -> None:
        self._options, self._send = options, send
        self._read = program
        arguments = enumerate(program.example)
        self._infinite = [at for at, one in arguments if one.is_floating_point() and bool(one.isinf().any())]
        self._flat = FlatModule(program.module, (program.example, {}))
        self._exported = Exported(program, folder)
        self._inside = Inside(program)
        self._tried: dict[str, _Times] = {}
        """Those of backends that answer as PyTorch does, or are slow."""
        self._built: dict[str, Built] = {}
        self._stored: str | None = None
        """The backend whose way is stored."""
        self._costs_s = {PROGRAM: cpu_s() - began_s}
        """CPU seconds of building each, and of what is done once for all."""

    @property
    def history(self) -> Path | None:
        """The file of what earlier searches found; None: nothing is stored."""
        path = self._options.history
        return None if path is None else Path(path)

    def run(self, history: BackendHistory) -> None:
        """Report the fastest way of each backend as soon as it is known; build none that is expected to be slower."""
        kind, shape, failed = self._options.kind, Shape(*self._options.shape), list[str]()
        for backend in history.ordered(self._options.among, kind, shape):
            found = {name: times.share for name, times in self._tried.items()}
            best = 1 / min([1.0, *found.values()])
            left = history.forecast(backend, kind, found, shape).beyond(best)
            if left < WORTH:
                self._leave_out(backend, f"beyond a gain of {best:.3g} it is expected to gain {left - 1:.2%}")
                continue
            before_s = cpu_s() - self._exported.cost_s
            try:
                self._try(backend)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others remain
                self._leave_out(backend, error)
            if backend not in self._tried:
                failed.append(backend)
            self._costs_s[backend] = cpu_s() - self._exported.cost_s - before_s
            self._store()
            return_freed_memory()
        self._costs_s[PROGRAM] += self._exported.cost_s
        calm = {name: times.share for name, times in self._tried.items() if times.calm}
        history.add(kind, calm, self._costs_s, shape=shape, failed=failed)

    def _store(self) -> None:
        """Keep the fastest way so far for later processes: this one may end before all are built."""
        options, fastest = self._options, min(self._built, key=lambda name: self._tried[name].share, default=None)
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
        library, cores, began_s = LIBRARIES[backend], self._options.cores, time.process_time()
        for needed in library.needs[-1:]:
            importlib.import_module(needed)
        import_s = time.process_time() - began_s
        file = library.build(self._exported, cores, self._options.kind == "convolutions")
        began_s = time.process_time()
        call = library.open(file, cores, self._read.example)
        open_s = import_s + time.process_time() - began_s
        self._flat.check(call)
        times = self._times(call)
        fastest_s = min([times.eager_s, *(one.call_s for one in self._tried.values() if one.calm)])
        is_slow = times.calm and times.call_s > self._options.close * fastest_s
        if not is_slow and (reason := self._probes.disagreement(call)) is not None:
            raise CaptureError(reason)
        self._tried[backend] = times
        if is_slow:
            self._leave_out(backend, f"{times.call_s:.3g} s a call; the fastest so far takes {fastest_s:.3g} s")
            return
        gain = 1 / times.share if times.calm else None
        self._built[backend] = Built(backend, str(file), times.call_s, open_s, self._integers.arguments, gain)
        self._send(built=asdict(self._built[backend]))

    @cached_property
    def _integers(self) -> IndexRanges:
        return index_ranges(self._read)

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self._read, self._integers.arguments)

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


def _waited_s() -> float:
    """Seconds for which this process's threads were ready and got no core, all together; 0 where Linux does not say."""
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(path.read_text().split()[1])
    return waited_ns * 1e-9
