"""The daemon that divides a machine's cores among the processes that register with it, on a Unix socket."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threadcast.core import Machine
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.malleable.activity import Watched
from threadcast.malleable.deadline import Deadline
from threadcast.malleable.division import Claim
from threadcast.malleable.ledger import Ledger, Party
from threadcast.malleable.messages import Lines, cpus_of, line
from threadcast.malleable.sockets import listen, peer

RELEASE_S = 0.5
"""How long a process may take to let go of cores before they are taken from it: a stopped process does not answer."""
GATHER_S = 0.3
"""After its start, during which an arbiter only listens: processes of one that died come back with what they have."""
ALONE_S, LOOK_S, SOON_S = 0.5, 0.1, 0.01
"""How often a process that is alone is looked at, and several; while some lend their cores, and want them back as soon
as they work."""

_LARGEST = 1e15
"""Of a number in a message: beyond it, sums of shares and of progress would lose what they add."""


_logger = logging.getLogger("threadcast.arbiter")


class Arbiter:
    """Serves `path` until `stop` is called: `with Arbiter(machine, path) as arbiter: arbiter.serve()`.

    A connection is a process: when it ends, however it ends, its cores are free. `group`: whose members may connect.
    """

    def __init__(
        self, machine: Machine, path: Path, *, group: str | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = Ledger(machine)
        self._path, self._now = path, now
        self._core_of = {cpu: core.id for core in machine.cores for cpu in core.cpus}
        self._cpus_of = {core.id: list(core.cpus) for core in machine.cores}
        self._connections: dict[str, _Connection] = {}
        self._listening = listen(path, group=group)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._quiet_until_s = now() + GATHER_S
        self._looked_s = 0.0
        self._stopping = False

    def __enter__(self) -> Arbiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self) -> None:
        """Answer until `stop`."""
        while not self._stopping:
            lent = any(party.lends for party in self._ledger.parties.values())
            for key, events in self._selector.select(timeout=SOON_S if lent else self._look_s()):
                if key.fileobj is self._listening:
                    self._accept()
                elif key.data is not None and events & selectors.EVENT_WRITE:
                    self._send_rest(key.data)
                elif key.data is not None:
                    self._read(key.data)
            if every := self._now() >= self._looked_s + self._look_s():
                self._looked_s = self._now()
            self._look(every=every)
            if self._now() >= self._quiet_until_s:
                if every:
                    self._ledger.explore(self._now())
                self._send_orders()

    def stop(self) -> None:
        """End `serve`, from another thread or a signal handler."""
        self._stopping = True
        self._wake.send(b"x")

    def close(self) -> None:
        """Let go of the socket; processes keep the cores that they have."""
        for connection in self._connections.values():
            connection.socket.close()
        for one in (self._listening, self._woken, self._wake, self._selector):
            one.close()
        self._path.unlink(missing_ok=True)

    def _look_s(self) -> float:
        alone = len(self._ledger.parties) < 2 and self._now() >= self._quiet_until_s
        return ALONE_S if alone else LOOK_S

    def _look(self, *, every: bool) -> None:
        """See who computes and who waits: `every` process, or only those that lend."""
        now_s, parties = self._now(), self._ledger.parties
        joined = [connection for name, connection in self._connections.items() if name in parties]
        processes = {connection.process for connection in joined}
        for connection in joined:
            if every or parties[connection.name].lends:
                self._ledger.active(connection.name, connection.watched.look(now_s, processes), now_s)
                if connection.watched.gone:
                    self._drop(connection, "it ended")

    def _accept(self) -> None:
        try:
            made, _ = self._listening.accept()
        except OSError as error:  # whoever called has gone, or there are too many open files
            _logger.warning("a process could not connect: %s", error)
            return
        made.setblocking(False)
        connection = _Connection(made, peer(made))
        self._connections[connection.name] = connection
        self._selector.register(made, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            for message in connection.lines.feed(data):
                self._handle(connection, message)
                if connection.name not in self._connections:  # it could not be answered
                    return
        except BlockingIOError:
            return
        except (FormatError, InvalidInput) as error:
            self._send(connection, {"error": str(error)})
            self._drop(connection, str(error))
        except OSError:
            self._drop(connection, "it ended")

    def _handle(self, connection: _Connection, message: dict[str, Any]) -> None:
        now_s, name = self._now(), connection.name
        if "who" in message:
            self._send(connection, self._state())
            return
        if "join" in message:
            if name in self._ledger.parties:
                raise FormatError("this connection has joined already")
            asked = message["join"]
            if not isinstance(asked, dict):
                raise FormatError("join must be an object", pointer="/join")
            connection.title = str(asked.get("name", ""))[:200]
            deadline = _deadline(asked, "/join/deadline", now_s)
            self._ledger.join(name, _claim(asked), self._cores(asked, "holds"), now_s, may=self._may(asked))
            if deadline is not None:
                self._ledger.promise(name, deadline, now_s)
            _logger.info("%s (%s) joined", name, connection.title)
            return
        if name not in self._ledger.parties:
            raise FormatError("join first")
        if "holds" in message:
            number = int(_number(message, "order"))
            self._ledger.confirmed(name, number, self._cores(message, "holds"))
            if number >= connection.order:
                connection.asked_s = None
        if "bounds" in message:
            if not isinstance(bounds := message["bounds"], dict):
                raise FormatError("bounds must be least and most", pointer="/bounds")
            least, most = int(_number(bounds, "least", 1.0)), int(_number(bounds, "most"))
            self._ledger.bound(name, least, most, now_s, may=self._may(bounds))
        if "progress" in message:
            self._ledger.expect(name, _progress(message["progress"], "/progress"), now_s)
        if "steps" in message:
            self._ledger.report(name, _number(message, "steps"), now_s)
        if "deadline" in message:
            self._ledger.promise(name, _deadline(message, "/deadline", now_s), now_s)
            connection.on_time = None

    def _cores(self, message: dict[str, Any], name: str) -> list[int]:
        found = {self._core_of[cpu] for core in cpus_of(message, name) for cpu in core if cpu in self._core_of}
        return sorted(found)

    def _may(self, message: dict[str, Any]) -> frozenset[int] | None:
        """The cores of which a process may use every hardware thread; None where it does not say, or that is all."""
        if "may" not in message:
            return None
        cpus = {cpu for core in cpus_of(message, "may") for cpu in core}
        found = frozenset(core for core, own in self._cpus_of.items() if cpus.issuperset(own))
        return found if 0 < len(found) < len(self._cpus_of) else None

    def _send_orders(self) -> None:
        now_s = self._now()
        for name, (number, cores) in self._ledger.orders().items():
            connection = self._connections[name]
            connection.order, connection.cores, connection.asked_s = number, cores, now_s
            self._send(connection, {"cores": [self._cpus_of[core] for core in cores], "order": number})
        for name, connection in list(self._connections.items()):
            release_s = 0.0 if connection.watched.activity.stopped else RELEASE_S
            if connection.asked_s is not None and now_s > connection.asked_s + release_s:
                connection.asked_s = None
                if name in self._ledger.parties:
                    _logger.warning("%s (%s) did not let go of cores; they are given to others", name, connection.title)
                    self._ledger.confirmed(name, connection.order, connection.cores)
        for name, party in list(self._ledger.parties.items()):
            connection = self._connections[name]
            if party.on_time is not None and party.on_time != connection.on_time:
                connection.on_time = party.on_time
                if not party.on_time:
                    _logger.warning("%s (%s) will not meet its deadline", name, connection.title)
                self._send(connection, {"deadline": _left(party, now_s)})

    def _send(self, connection: _Connection, message: dict[str, Any]) -> None:
        """One message, of which a part may wait until the other side reads; who wants another meanwhile is dropped."""
        if connection.unsent:
            self._drop(connection, "it does not read")
            return
        connection.unsent = line(message)
        self._send_rest(connection)
        if connection.unsent and connection.name in self._connections:
            self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _send_rest(self, connection: _Connection) -> None:
        try:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except OSError:
            self._drop(connection, "it cannot be told anything")
            return
        if not connection.unsent:
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _drop(self, connection: _Connection, why: str) -> None:
        if self._connections.pop(connection.name, None) is None:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.name in self._ledger.parties:
            _logger.info("%s (%s) left: %s", connection.name, connection.title, why)
        self._ledger.leave(connection.name, self._now())

    def _state(self) -> dict[str, Any]:
        now_s = self._now()
        parties = [
            {
                "process": self._connections[name].process, "name": self._connections[name].title,
                "cores": [self._cpus_of[core] for core in sorted(party.holds)], "weight": party.claim.weight,
                "steps_per_s": party.progress.rates.get(len(party.target)),
                "by_cores": {str(cores): rate for cores, rate in sorted(party.progress.rates.items())},
                "deadline": _left(party, now_s), "lends": party.lends,
            }
            for name, party in self._ledger.parties.items()
        ]  # fmt: skip
        machine = self._ledger.machine
        return {"machine": machine.name, "cores": len(machine), "processes": parties}


class _Connection:
    """One process, by its socket. A process may connect twice: names are of connections."""

    _count = 0

    def __init__(self, made: socket.socket, process: int) -> None:
        _Connection._count += 1
        self.socket, self.process = made, process
        self.name, self.title = f"{process}.{_Connection._count}", ""
        self.lines, self.watched = Lines(), Watched(process)
        self.unsent = b""
        """What is left of a long answer."""
        self.order, self.cores = 0, tuple[int, ...]()
        """What it was told last."""
        self.asked_s: float | None = None
        """When it was last told of other cores and has not answered."""
        self.on_time: bool | None = None
        """What it was last told of its deadline."""


def _claim(asked: dict[str, Any]) -> Claim:
    progress = _progress(asked.get("progress") or {}, "/join/progress")
    try:
        most = asked.get("most")
        return Claim(
            _number(asked, "weight", 1.0),
            int(_number(asked, "least", 1.0)),
            None if most is None else int(_number(asked, "most")),
            progress,
        )
    except (TypeError, ValueError) as error:
        raise FormatError(f"join: {error}", pointer="/join") from error


def _deadline(message: dict[str, Any], pointer: str, now_s: float) -> Deadline | None:
    asked = message.get("deadline")
    if asked is None:
        return None
    if not isinstance(asked, dict):
        raise FormatError("deadline must be steps and in_s, or null", pointer=pointer)
    return Deadline.within(_number(asked, "steps"), _number(asked, "in_s"), now_s)


def _left(party: Party, now_s: float) -> dict[str, Any] | None:
    if (deadline := party.deadline) is None:
        return None
    return {"steps": deadline.steps, "in_s": round(deadline.by_s - now_s, 3), "met": party.on_time}


def _progress(rates: object, pointer: str) -> dict[int, float]:
    if not isinstance(rates, dict):
        raise FormatError("progress must be rates by number of cores", pointer=pointer)
    try:
        found = {int(cores): float(rate) for cores, rate in rates.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"progress: {error}", pointer=pointer) from error
    if not all(1 <= cores <= _LARGEST and 0 <= rate <= _LARGEST for cores, rate in found.items()):
        raise FormatError(f"progress: cores from 1 on, rates from 0 on, both at most {_LARGEST:g}", pointer=pointer)
    return found


def _number(message: dict[str, Any], name: str, default: float | None = None) -> float:
    value = message.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise FormatError(f"{name} must be a number, at most {_LARGEST:g}", pointer=f"/{name}")
    return float(value)
