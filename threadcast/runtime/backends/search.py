"""Tries backends in a process of its own while the caller's steps go on, and opens those that are worth it."""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from threadcast.capture.graph.captured import Captured
from threadcast.core.errors import CaptureError
from threadcast.runtime.backends.frozen import FlatModule, TensorCall
from threadcast.runtime.backends.libraries import LIBRARIES, has
from threadcast.runtime.backends.number_guard import NumberGuard
from threadcast.runtime.backends.program_file import (
    ProgramFile,
    dense,
    program_file,
    results_share_memory,
    returned_arguments,
    unused_draws,
)
from threadcast.runtime.backends.result_memory import ResultMemory
from threadcast.runtime.backends.search_process import SearchProcess, end_kept, keep, lent
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.backends.way_store import WayStore, key_of
from threadcast.runtime.backends.ways import Built, Options
from threadcast.runtime.backends.weight_versions import WeightVersions, held_tensors
from threadcast.runtime.plans.backend_history import network_kind, shape_of
from threadcast.runtime.tuner.candidate import Way, backend
from threadcast.threads.affinity import PinnedThread
from threadcast.threads.memory import memory_regime

BACKENDS = tuple(LIBRARIES)

OPENING_S = 2.0
"""Longest time in seconds that a caller who does not wait for the search may be kept by opening a backend."""
CLOSE = 1.3
"""Ratio to the fastest way's seconds up to which another way is opened too: the seconds of the same backend at the same
setting differ by 10 to 20 % between two processes."""
_BEGINS_S = 0.1
"""Longest wait in seconds for the start of a process that then rests: beside what follows it would take a core."""
_logger = logging.getLogger("threadcast")


def begin_process(cores: int, *, history: Path | None = None, cpus: Sequence[int] | None = None) -> None:
    """Start the process for a search that is to come, which has libraries to import: 4 s of CPU time.

    The arguments are those of `BackendSearch`.
    """
    own, path = None if cpus is None else list(cpus), None if history is None else str(history)
    options = Options([], cores, "pointwise", CLOSE, path, cpus=own, keeps_memory=memory_regime() == "kept")
    with suppress(OSError):
        keep(lent(options, works=True))


class BackendSearch:
    """A search for backends that run a module faster than PyTorch: `start` it, and `poll` it before each step.

    `captured` is the module's forward pass as captured for arguments of this kind, un-fused, in the memory format that
    the module was given in. `arguments` are the example: positional arguments and keywords. `result` is what the module
    returns for it, with which the results of backends are compared.

    A process (`search_process`) builds, checks and times `among`, the likeliest first, for `cores` cores, unless they
    are expected to be slower than what was found. It needs 5 to 60 s of CPU time. A way is opened if its call takes up
    to `close` times the seconds of the fastest that is known. What earlier searches found is in the file `history`, one
    for each kind of machine; None: nothing is stored.

    With `cpus` backends run on these CPUs only, and so does the search. OpenVINO, whose threads all models of a process
    share, and which chooses their CPUs itself, is not among them.

    A module in training mode has no backends, nor has one that `program_file` refuses.
    """

    def __init__(
        self, module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], captured: Captured, cores: int, *,
        result: Any, among: Sequence[str] = BACKENDS, close: float = CLOSE, history: Path | None = None,
        cpus: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._module, self._arguments, self._captured = module, arguments, captured
        self._result = result
        among = list(filter(has, among))
        self.left_out: dict[str, str] = {}
        """Backends and settings that are left out, and why."""
        if cpus is not None:
            for name in [name for name in among if LIBRARIES[name].chooses_cpus]:
                self._leave_out(name, f"it chooses CPUs itself, and the model is to keep to {list(cpus)}")
                among.remove(name)
        history_path = None if history is None else str(history)
        kind, own = network_kind(captured.graph), None if cpus is None else list(cpus)
        keeps = memory_regime() == "kept"
        shape = shape_of(captured.graph)
        self._options = Options(among, cores, kind, close, history_path, own, keeps, shape=shape)
        self._ways = None if history is None else WayStore(history.with_name(WAYS))
        self._over = self._all_built = self._told_all = False
        self._stored = ""
        """Name in `_ways` of the way that an earlier process has built; empty where there is none."""
        self.broken_off = False
        """Whether something ended the search that need not end a later one."""
        self._process: SearchProcess | None = None
        self._unread = b""
        self._built: deque[Built] = deque()

    @property
    def over(self) -> bool:
        """Whether `poll` will return no more ways."""
        return self._over

    @property
    def working(self) -> bool:
        """Whether the process that builds backends is still at work. What it has to tell is taken note of."""
        self._listen()
        return not (self._over or self._all_built)

    @property
    def has_turn(self) -> bool:
        """Whether the process that builds backends works where it may, and not that of another process."""
        return self._process is not None and self._process.has_turn

    def start(self) -> None:
        """Start the search; returns after some hundredths of a second. The module's weights are read a little later."""
        try:
            if any(part.training for part in self._module.modules()):
                raise CaptureError("the module is in training mode")
            content = program_file(self._captured)
            self._versions = WeightVersions(held_tensors(self._captured), weakly=self._captured.weakly)
            self._returned = returned_arguments(self._captured)
            self._draws = tuple(unused_draws(self._captured).values())
            results = enumerate(pytree.tree_leaves(self._result))
            self._memory = ResultMemory([one for at, one in results if at not in self._returned])
            if results_share_memory(self._captured) and not self._memory.shares:
                raise CaptureError("results of the module may share memory, and did not in the example")
        except (CaptureError, RuntimeError) as error:
            self._end("every backend", str(error))
            end_kept(waits=False)  # which `begin_process` may have begun for this one
            return
        # without gaps, as the program that the backends are built for
        self._arguments = pytree.tree_map_only(Tensor, lambda value: dense(value).clone(), self._arguments)
        self._result = pytree.tree_map_only(Tensor, torch.clone, self._result)
        if self._found_before(content):
            return
        try:
            self._process = lent(self._options)
            self._dropped = weakref.finalize(self, self._process.close)
            self._dropped.atexit = False  # it ends with this process in any case
            self._process.begin(content, self._options)
            self._process.wait(0.0 if self._process.heard else _BEGINS_S)
        except OSError as error:
            self.broken_off = True
            self._end("every backend", f"no process can be started: {error.strerror}")

    def poll(self, *, unlimited: bool = False) -> Way | None:
        """Return a way that is new and ready to run; None where there is none yet, which takes microseconds.

        Call this between steps. `unlimited`: the caller waits for the search, which may take any time then.
        """
        if not self._built:
            self._listen()
        return self._opened(self._built.popleft(), unlimited=unlimited) if self._built and not self._over else None

    def wait(self, timeout_s: float) -> None:
        """Let it work, and return when `poll` has something to do, or after `timeout_s` seconds."""
        if not (self._over or self._built) and self._process is not None:
            self._process.rest(False)
            self._process.wait(timeout_s)

    def rest(self, rests: bool) -> None:
        """Let the process that builds backends work beside the caller, or rest while that computes (`search_guard`)."""
        if self._process is not None:
            self._process.rest(rests)

    def close(self) -> None:
        """End the search and its processes; ways that it returned go on. Closing again does nothing."""
        self._over = True
        self._built.clear()
        process, self._process = self._process, None
        if process is None:
            return
        self._dropped.detach()
        if self._told_all:
            process.idle()
            keep(process)
        else:
            process.close()
        self._result = None

    def _found_before(self, content: ProgramFile) -> bool:
        """Take the way that an earlier process has stored; return whether there is one for these weights."""
        options = self._options
        if self._ways is None:
            return False
        key = key_of(content.head, (options.cores, options.kind, options.cpus), options.among)
        self._options = replace(options, key=key)
        found = self._ways.read(key, content.weights_digest, _infinite(self._arguments))
        if found is None:
            return False
        self._built.append(Built.of(found))
        self._all_built, self._stored = True, Path(found["file"]).parent.name
        return True

    def _listen(self) -> None:
        """Read what the other process has to tell, if anything."""
        if self._process is None or self._over or self._all_built:
            return
        found = self._process.read()
        if found is not None:
            self._receive(found)

    def _receive(self, found: bytes) -> None:
        """Take note of messages; nothing at all means that the other process has ended."""
        if not found:
            self.broken_off = True
            not_written = "" if self._process is None else self._process.not_written
            what = "every backend" if not_written else "every other backend"
            self._leave_out(what, not_written or "the process that built it ended early")
            self._finish()
            return
        *lines, self._unread = (self._unread + found).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "built" in message:
                self._built.append(Built.of(message["built"]))
            elif "left_out" in message:
                self._leave_out(message["left_out"], message["reason"])
        if any("over" in message for message in messages):
            self._told_all = True
            self._finish()

    def _finish(self) -> None:
        """No further way will be built."""
        self._all_built = True
        if not self._built:
            self.close()

    def _opened(self, built: Built, *, unlimited: bool) -> Way | None:
        """Open a way and check its result; None where that takes too long, or fails."""
        way, needed_s = None, (built.open_s + built.call_s) * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if not unlimited and needed_s > OPENING_S:
            self._leave_out(built.backend, f"opening it takes {needed_s:.2g} s, which calls may not wait for")
        elif not self._versions.unchanged():
            self.broken_off = True
            self._end(built.backend, "the weights were written to since they were copied")
            return None
        else:
            try:
                with torch.no_grad():
                    way = self._checked(built)
            except Exception as error:  # noqa: BLE001 - whatever stops a foreign library, the others and the plan remain
                self._leave_out(built.backend, (str(error).strip().splitlines() or [type(error).__name__])[0])
                if self._stored and self._ways is not None:  # a later process searches
                    self._ways.drop(self._stored)
                    self.broken_off = True
        if self._all_built:
            self._finish()
        return way

    def _checked(self, built: Built) -> Way:
        flat = FlatModule(self._module, self._arguments, result=self._result, returned=self._returned)
        call = self._call(built, flat)
        flat.check(call)
        guard = NumberGuard(flat.tensors(self._arguments), built.integers)
        run = flat.call(call, guard, self._memory, self._draws)
        own_threads = built.backend != "torch.compile"
        return Way(backend(built.backend), run, self._versions.unchanged, built.gain, own_threads)

    def _call(self, built: Built, flat: FlatModule) -> TensorCall:
        """The call of a way: with CPUs of its own, in a thread that has these, as have the threads that it starts.

        It raises where that thread is not, as in a fork of the process.
        """
        open_way = partial(
            LIBRARIES[built.backend].open, Path(built.file), self._options.cores, flat.tensors(self._arguments)
        )
        if self._options.cpus is None:
            return open_way()
        thread = PinnedThread(self._options.cpus, threads=self._options.cores)
        return partial(thread.run, thread.run(open_way))

    def _leave_out(self, what: str, reason: str) -> None:
        self.left_out[what] = reason
        _logger.info("%s is left out: %s", what, reason)

    def _end(self, what: str, reason: str) -> None:
        self._leave_out(what, reason)
        self.close()


def _infinite(arguments: Any) -> list[int]:
    """The positions of the tensors among arguments that have infinities."""
    tensors = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    numbers = ((at, one) for at, one in enumerate(tensors) if one.is_floating_point())
    return [at for at, one in numbers if bool(one.isinf().any())]
