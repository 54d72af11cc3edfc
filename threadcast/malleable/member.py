"""The process's side: decides which cores it uses, by its limits, the arbiter's orders and requests to resize."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threadcast.core.errors import InvalidInput
from threadcast.malleable.arbiter_link import ArbiterLink, Terms
from threadcast.malleable.followers import Followers, Follows
from threadcast.malleable.inherited_limit import inherited_limit, record_limit
from threadcast.malleable.limits import Cores, Limits, cpus_in
from threadcast.malleable.messages import Bounds, asks_limits, resize_of
from threadcast.malleable.process_socket import ProcessSocket
from threadcast.malleable.sockets import socket_of
from threadcast.threads.this_process import ProcessState

LOOK_S = 0.2
"""Seconds between looks: a look reads the container's limits, looks for an arbiter, and reports changes to it."""

_logger = logging.getLogger("threadcast.malleable")


class Member:
    """Makes a process follow its cores, from a thread of its own; `followers` are told of every change.

    It is the process with the number `terms.process`, or else this one. The cores in use are those that the container's
    limits allow; of these, those that the arbiter at the socket `arbiter` assigned; of these, those that `resize` asked
    for. When the arbiter goes away, its last assignment holds until there is an arbiter again. `steps()` returns how
    many steps the process has made. `root` is the folder with /proc and /sys. `requested` was asked for before, and
    `remember` is told what is asked for from now on.
    """

    def __init__(
        self, terms: Terms, process: ProcessState, *, arbiter: Path, steps: Callable[[], float],
        followers: Follows | None = None, root: Path = Path("/"), requested: int | Cores | None = None,
        remember: Callable[[int | Cores | None], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.terms = terms
        self._limits = Limits(process.cores, root=root, mask=inherited_limit())
        self._followers = followers or Followers(process.cores)
        self._lock = threading.Lock()
        self._requested, self._remember = requested, remember
        """`_requested`: the argument of the last `resize`."""
        self._assigned: Cores | None = None
        """The cores that an arbiter assigned last; None before that."""
        self._cores: Cores = ()
        self._applied = False
        """Whether all that follows the cores was told of those in use now."""
        self._fails = False
        """Whether the last look failed."""
        self._selector = selectors.DefaultSelector()
        self._socket: ProcessSocket | None = None
        if followers is None:  # others may need no cores yet
            self._listen()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._clear_wake)
        self._link = ArbiterLink(
            arbiter, terms, self._selector, steps=steps, expected=lambda: process.steps.expected, assigned=self._assign,
            learning=lambda: process.steps.learning,
        )  # fmt: skip
        self._ordered = threading.Event()
        """Set once an arbiter has assigned cores."""
        self._next_look_s = 0.0
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="threadcast-member", daemon=True)

    @property
    def cores(self) -> Cores:
        """The cores in use, each as the tuple of its hardware threads' CPU numbers."""
        return self._cores

    def start(self) -> None:
        """Start to follow the cores: apply the container's limits at once, and all later changes from a thread."""
        with self._lock:
            self._apply()
        self._try_to_look()
        self._thread.start()

    def first_cores(self, within_s: float) -> tuple[int, bool]:
        """Return how many cores are in use, and whether an arbiter assigns them, for which this waits up to so long."""
        if self._link.is_joined:
            self._ordered.wait(within_s)
        return len(self._cores), self._link.is_joined

    def close(self) -> None:
        """Stop following the cores and leave the arbiter; the process keeps the cores that it has now."""
        self._ending = True
        self._wake.send(b"x")
        self._thread.join()

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets; otherwise the parent would seem alive as long as the child."""
        if self._socket is not None:
            self._socket.abandon()
        self._link.abandon()
        for one in (self._woken, self._wake, self._selector):
            one.close()

    def resize(self, cores: int | Cores | None) -> Cores:
        """Use this number of cores, or these cores, or all (None). Returns the cores in use from then on.

        Where limits or the arbiter allow fewer cores now, the number is remembered and holds once they allow it.
        InvalidInput for no core, for more cores than the machine has, and for cores that this process may not use.
        """
        if not isinstance(cores, int | tuple | None) or isinstance(cores, bool):
            raise InvalidInput(f"cores={cores!r} must be a number of cores, cores, or nothing for all")
        if isinstance(cores, int) and cores < 1:
            raise InvalidInput(f"cores={cores!r}: a process runs on at least 1 core")
        if isinstance(cores, int) and cores > _machine_cpus():
            raise InvalidInput(f"cores={cores}: this machine has {_machine_cpus()} CPUs")
        with self._lock:
            if isinstance(cores, tuple):
                allowed = cpus_in(self._limits.cores())
                if not cores or not cpus_in(cores) <= allowed:
                    raise InvalidInput(f"cores={cores}: this process may use CPUs {sorted(allowed)}")
            self._requested = cores
            self._remember(cores)
            self._apply()
            return self._cores

    def step(self, by: int) -> Cores:
        """Use one core more (`by` 1) or fewer (-1) than now, if possible. Returns the cores in use from then on."""
        return self.resize(min(max(len(self._cores) + by, 1), _machine_cpus()))

    def _usable(self) -> Cores:
        """The cores to use now, of those that the limits allow."""
        allowed = self._limits.cores()
        if self._assigned is not None:
            assigned = tuple(core for core in self._assigned if self._limits.cpus.issuperset(core))
            allowed = assigned[: len(allowed)] or allowed
        if isinstance(self._requested, int):
            return allowed[: self._requested]
        if self._requested is not None:
            requested = cpus_in(self._requested)
            return tuple(left for core in allowed if (left := tuple(c for c in core if c in requested))) or allowed
        return allowed

    def _apply(self) -> None:
        """Apply the cores to use to everything that follows them. The caller holds the lock."""
        usable = self._usable()
        if usable != self._cores or self._limits.moved or not self._applied:
            self._cores, self._applied = usable, False
            self._limits.restricted_to(self._followers.apply(usable))
            record_limit(self._limits.mask, cpus_in(usable))
            self._applied = True

    def _assign(self, cores: Cores) -> Cores:
        """Accept the cores that the arbiter assigns; return the cores in use from then on."""
        with self._lock:
            self._assigned = cores
            self._apply()
            self._ordered.set()
            return self._cores

    def _run(self) -> None:
        while not self._ending:
            if time.monotonic() >= self._next_look_s:
                self._next_look_s = time.monotonic() + LOOK_S
                self._try_to_look()
                if self._socket is not None:
                    self._socket.listen_again()
            for key, _ in self._selector.select(max(self._next_look_s - time.monotonic(), 0.0)):
                key.data()
        self._leave()
        for one in (self._woken, self._wake, self._selector):
            one.close()

    def _clear_wake(self) -> None:
        self._woken.recv(1 << 10)
        self._next_look_s = 0.0

    def _try_to_look(self) -> None:
        """Look; where it fails, as without a free file descriptor, the next look catches up."""
        try:
            self._look()
        except (OSError, InvalidInput) as error:
            if not self._fails:  # else it is in the log already
                _logger.warning("this process cannot follow its cores for now: %s", error)
            self._fails = True
        else:
            self._fails = False

    def _look(self) -> None:
        with self._lock:
            self._apply()
            if not self._followers.catch_up():
                self._leave()
                self._assigned = None
                return
            self._listen()
            holds = () if self._assigned is None else self._cores
            has_all, bounds = len(self._cores) >= len(self._limits.left), self._bounds()
        self._link.look(bounds, holds, has_all=has_all)

    def _listen(self) -> None:
        if self._socket is None:
            path = socket_of(self.terms.process or os.getpid())
            self._socket = ProcessSocket(path, self._selector, self._answer, instead_of=self.terms.process)

    def _leave(self) -> None:
        """Take no part for now: leave the arbiter, and answer nobody."""
        self._link.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _bounds(self) -> Bounds:
        """How many cores this process could use, and which CPUs it may use."""
        most, allowed = len(self._limits.left), self._limits.cpus
        if isinstance(self._requested, int):
            most = min(most, self._requested)
        elif self._requested is not None:
            most = min(most, len(self._requested))
            allowed &= cpus_in(self._requested)
        most = min(most, self.terms.most or most)
        return Bounds(min(self.terms.least, most), most, tuple((cpu,) for cpu in sorted(allowed)))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if asks_limits(question):
            with self._lock:
                return {"limits": self._limits.cores(), "cores": self._cores}
        return {"cores": [list(core) for core in self.resize(resize_of(question))]}


def _machine_cpus() -> int:
    """Number of all CPUs of the machine, also of those that this process may not use."""
    return os.cpu_count() or 1
