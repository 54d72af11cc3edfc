"""A process's side: a thread that hears which cores it may use, and has its threads follow."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError, InvalidInput, NotFound, ServiceUnavailable
from threadcast.malleable.adjust import MainThread, ThreadMasks, set_library_threads, steered_libraries
from threadcast.malleable.children import Children, inherited_limit
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.limits import Cores, Limits
from threadcast.malleable.messages import Lines, cpus_of, line
from threadcast.malleable.other_threads import OtherThreads
from threadcast.malleable.sockets import connect, listen, socket_of
from threadcast.threads.this_process import ProcessState

LOOK_S, REPORT_S = 0.2, 0.5
"""How often the container's limits are looked at, an arbiter is looked for, and steps are reported; how often these are
by a process that has all the cores that it may use."""
REFUSED_S, LONGEST_REFUSED_S = 1.0, 30.0
"""How long an arbiter is left alone that refuses this process: at first, and, twice as long each time, at most."""

_logger = logging.getLogger("threadcast.malleable")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a process tells an arbiter when it joins; see `division.Claim`."""

    name: str = ""
    weight: float = 1.0
    least: int = 1
    most: int | None = None
    deadline: tuple[float, float] | None = None
    """Steps that are to be made, and in how many seconds from when the process begins to follow."""


class Member:
    """Listens at `socket_of(this process)` and, while there is one, to the arbiter at `arbiter`.

    The cores in use are, of those that the container's limits leave, those that the arbiter gave, and of these those
    that `resize` asked for. An arbiter that goes away changes nothing until one comes back.
    """

    def __init__(
        self, terms: Terms, process: ProcessState, *, arbiter: Path | None, steps: Callable[[], float] | None = None,
        root: Path = Path("/"),
    ) -> None:  # fmt: skip
        self.terms, self._arbiter_path, self._steps = terms, arbiter, steps
        self._process = process
        self._limits = Limits(process.cores, root=root, mask=inherited_limit())
        self._main, self._threads, self._children = MainThread(), ThreadMasks(cores=process.cores), Children()
        self._children_moved, self._others = False, OtherThreads()
        self._libraries = frozenset[str]()
        self._lock = threading.Lock()
        self._asked: int | Cores | None = None
        self._given: Cores | None = None
        self._cores: Cores = ()
        self._path = socket_of(os.getpid())
        self._listening = listen(self._path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._arbiter: socket.socket | None = None
        self._lines = Lines()
        self._refused_s, self._join_from_s = 0.0, 0.0
        self._reported, self._report_s = -1.0, 0.0
        self._bounds: dict[str, Any] = {}
        self._expected: Mapping[int, float] = {}
        self._deadline: Deadline | None = None
        self._deadline_said = True
        self._on_time: bool | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="threadcast-member", daemon=True)

    @property
    def cores(self) -> Cores:
        """The cores in use, each as its hardware threads."""
        return self._cores

    @property
    def on_time(self) -> bool | None:
        """Whether the arbiter says that the deadline is met; None without either, and before it is known."""
        return self._on_time

    def finish(self, steps: float, within_s: float) -> None:
        """Have so many steps from now made within so many seconds from now; this replaces an earlier deadline.

        Steps are those of torch's optimizers and of optimised models. The arbiter gives the fewest cores with which
        that can be done, before it divides the rest; where it cannot be done a warning is logged, and `on_time`
        is False.
        """
        deadline = Deadline.within(steps, within_s, time.monotonic())
        with self._lock:
            self._deadline, self._deadline_said, self._on_time = deadline, False, None
        self._wake.send(b"x")

    def start(self) -> None:
        """Follow what the container leaves, and begin to listen."""
        if self.terms.deadline is not None:
            self.finish(*self.terms.deadline)
        with self._lock:
            self._apply()
        self._thread.start()

    def close(self) -> None:
        """Stop listening and leave the arbiter; the cores stay as they are."""
        self._ending = True
        self._wake.send(b"x")
        self._thread.join()

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets: else its parent would seem to live for as long as it does."""
        for one in (self._listening, self._woken, self._wake, self._arbiter, self._selector):
            if one is not None:
                one.close()

    def resize(self, cores: int | Cores | None) -> Cores:
        """Use this many of the cores that there are, or these, or None: all; the cores then in use.

        A number that its limits do not leave is kept until they do. InvalidInput for none, for more than the machine
        has, or for cores that this process may not use.
        """
        if not isinstance(cores, int | tuple | None) or isinstance(cores, bool):
            raise InvalidInput(f"cores={cores!r} must be a number of cores, cores, or nothing for all")
        if isinstance(cores, int) and cores < 1:
            raise InvalidInput(f"cores={cores!r}: a process runs on at least 1 core")
        if isinstance(cores, int) and cores > _most():
            raise InvalidInput(f"cores={cores}: this machine has {_most()} CPUs")
        if isinstance(cores, tuple):
            allowed = {cpu for core in self._limits.cores() for cpu in core}
            if not cores or not {cpu for core in cores for cpu in core} <= allowed:
                raise InvalidInput(f"cores={cores}: this process may use CPUs {sorted(allowed)}")
        with self._lock:
            self._asked = cores
            self._apply()
            return self._cores

    def step(self, by: int) -> Cores:
        """Use one core more (`by` 1) or fewer (-1) than now, as far as there are any."""
        return self.resize(min(max(len(self._cores) + by, 1), _most()))

    def _wanted(self) -> Cores:
        allowed = self._limits.cores()
        if self._given is not None:
            given = tuple(core for core in self._given if self._limits.cpus.issuperset(core))
            allowed = given[: len(allowed)] or allowed
        if isinstance(self._asked, int):
            return allowed[: self._asked]
        if self._asked is not None:
            asked = {cpu for core in self._asked for cpu in core}
            return tuple(left for core in allowed if (left := tuple(cpu for cpu in core if cpu in asked))) or allowed
        return allowed

    def _apply(self) -> None:
        """Have everything follow what is wanted; the lock is held."""
        wanted = self._wanted()
        if wanted != self._cores or self._limits.moved:
            self._cores = wanted
            self._process.cores.assign(cpu for core in wanted for cpu in core)
            cpus = frozenset(cpu for core in wanted for cpu in core)
            self._threads.restrict(cpus)
            self._children.restrict(cpus)
            self._children_moved = True
            self._limits.restricted_to(self._threads.mask_of(os.getpid()))
            self._set_library_threads(steered_libraries())

    def _set_library_threads(self, libraries: frozenset[str]) -> None:
        self._libraries, count = libraries, len(self._cores)
        self._main.call(lambda: set_library_threads(count))
        self._others.set(count)

    def _run(self) -> None:
        next_look_s = 0.0
        asking: dict[socket.socket, Lines] = {}
        while not self._ending:
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + LOOK_S
                self._look()
            for key, _ in self._selector.select(max(next_look_s - time.monotonic(), 0.0)):
                found = key.fileobj
                if found is self._listening:
                    self._accept(asking)
                elif found is self._arbiter:
                    self._hear()
                elif found is self._woken:
                    self._woken.recv(1 << 10)
                    next_look_s = 0.0
                elif isinstance(found, socket.socket):
                    self._answer(found, asking)
        self._forget_arbiter()
        for one in (*asking, self._listening, self._woken, self._wake):
            one.close()
        self._selector.close()
        self._path.unlink(missing_ok=True)

    def _accept(self, asking: dict[socket.socket, Lines]) -> None:
        try:
            made, _ = self._listening.accept()
        except OSError:  # whoever called has gone, or the program has too many open files
            return
        made.setblocking(False)
        asking[made] = Lines()
        self._selector.register(made, selectors.EVENT_READ)

    def _look(self) -> None:
        with self._lock:
            self._apply()
            if self._children_moved:  # one may have been started meanwhile, by a thread that had not been moved
                self._children_moved = False
                self._children.restrict(frozenset(cpu for core in self._cores for cpu in core))
            self._others.look()
            if self._libraries != (libraries := steered_libraries()):  # one was imported after the last change
                self._set_library_threads(libraries)
        if self._arbiter is None and self._arbiter_path is not None and time.monotonic() >= self._join_from_s:
            self._join(self._arbiter_path)
        if self._arbiter is not None and (bounds := self._bounds_now()) != self._bounds:
            self._bounds = bounds
            self._tell({"bounds": bounds})
        if self._arbiter is not None and (progress := self._process.steps.expected) != self._expected:
            self._expected = progress
            self._tell({"progress": {str(cores): per_s for cores, per_s in progress.items()}})
        self._tell_steps()
        self._tell_deadline()

    def _tell_steps(self) -> None:
        if not self._deadline_said:
            self._report_s = 0.0  # the arbiter counts what is left from the steps that it was told of last
        if self._arbiter is None or self._steps is None or time.monotonic() < self._report_s:
            return
        if (steps := self._steps()) != self._reported:
            shares = len(self._cores) < len(self._limits.left)
            self._reported, self._report_s = steps, 0.0 if shares else time.monotonic() + REPORT_S
            self._tell({"steps": steps})

    def _tell_deadline(self) -> None:
        """What is left of the deadline, once to each arbiter; this thread alone counts."""
        with self._lock:
            if self._deadline is None or self._deadline_said:
                return
            if self._steps is not None:
                self._deadline = self._deadline.after(self._steps())
            left, in_s = self._deadline.steps, self._deadline.by_s - time.monotonic()
            self._deadline_said = self._arbiter is not None
        if left > 0 and in_s > 0:
            self._tell({"deadline": {"steps": left, "in_s": in_s}})

    def _join(self, path: Path) -> None:
        try:
            made = connect(path, 0.1)
        except (NotFound, ServiceUnavailable):
            return
        made.setblocking(False)
        self._arbiter, self._lines = made, Lines()
        self._selector.register(made, selectors.EVENT_READ)
        holds = [] if self._given is None else [list(core) for core in self._cores]
        terms = {"name": self.terms.name, "weight": self.terms.weight}
        self._bounds = self._bounds_now()
        self._tell({"join": {**terms, **self._bounds, "holds": holds}})

    def _bounds_now(self) -> dict[str, Any]:
        """How many cores this process could use, at least and at most, and which CPUs it may."""
        most, may = len(self._limits.left), self._limits.cpus
        if isinstance(self._asked, int):
            most = min(most, self._asked)
        elif self._asked is not None:
            most = min(most, len(self._asked))
            may &= {cpu for core in self._asked for cpu in core}
        most = min(most, self.terms.most or most)
        return {"least": min(self.terms.least, most), "most": most, "may": [[cpu] for cpu in sorted(may)]}

    def _hear(self) -> None:
        assert self._arbiter is not None
        try:
            data = self._arbiter.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            for message in self._lines.feed(data):
                if "error" in message:
                    self._refused_s = min(max(2 * self._refused_s, REFUSED_S), LONGEST_REFUSED_S)
                    self._join_from_s = time.monotonic() + self._refused_s
                    _logger.warning("the arbiter refuses this process: %s", message["error"])
                    continue
                self._refused_s = 0.0
                if isinstance(deadline := message.get("deadline"), dict):
                    self._hear_of_deadline(deadline)
                    continue
                with self._lock:
                    self._given = cpus_of(message, "cores")
                    self._apply()
                    holds = [list(core) for core in self._cores]
                self._tell({"holds": holds, "order": message.get("order", 0)})
        except BlockingIOError:
            return
        except (OSError, FormatError):
            self._forget_arbiter()

    def _hear_of_deadline(self, deadline: dict[str, Any]) -> None:
        self._on_time = bool(deadline.get("met"))
        if not self._on_time:
            _logger.warning(
                "the deadline will not be met: %s steps are left, and %s s", *map(deadline.get, ("steps", "in_s"))
            )

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            if self._arbiter is not None:
                self._arbiter.send(line(message))
        except BlockingIOError:  # it does not read
            self._forget_arbiter()
        except OSError:
            pass  # it has gone, and may have said why: that is heard next, then the end

    def _forget_arbiter(self) -> None:
        if self._arbiter is not None:
            self._selector.unregister(self._arbiter)
            self._arbiter.close()
            self._arbiter = None
            self._reported, self._report_s, self._expected, self._on_time = -1.0, 0.0, {}, None
            self._deadline_said = self._deadline is None

    def _answer(self, connection: socket.socket, asking: dict[socket.socket, Lines]) -> None:
        """What somebody asks at this process's own socket: {"resize": 4}, {"resize": [[0], [1]]}, {"limits": "all"}."""
        try:
            data = connection.recv(1 << 16)
            for message in asking[connection].feed(data) if data else ():
                connection.send(line(self._limited() if "limits" in message else self._resized(message)))
        except BlockingIOError:
            return
        except (OSError, FormatError):
            data = b""
        if not data:
            self._selector.unregister(connection)
            del asking[connection]
            connection.close()

    def _limited(self) -> dict[str, Any]:
        with self._lock:
            return {"limits": self._limits.cores(), "cores": self._cores}

    def _resized(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            asked = message.get("resize", self._asked)
            cores = self.resize(cpus_of(message, "resize") if isinstance(asked, list) else asked)
        except InvalidInput as error:
            return {"error": str(error)}
        return {"cores": [list(core) for core in cores]}


def _most() -> int:
    """CPUs of the machine, whoever may use them."""
    return os.cpu_count() or 1
