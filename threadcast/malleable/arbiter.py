"""The daemon that divides a machine's cores among the processes that register with it, on a Unix socket."""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from threadcast.core import Machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.channel import Channel
from threadcast.malleable.connection import Connection
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.messages import requests_of
from threadcast.malleable.outsiders import Outsiders
from threadcast.malleable.request_handling import RequestHandler
from threadcast.malleable.sockets import file_id, listen, peer, remove, remove_left_behind

RELEASE_S = 0.5
"""Seconds that a process has to confirm an order; after that the cores count as released. A stopped process has 0."""
GATHER_S = 0.3
"""Seconds after its start in which an arbiter only listens: processes of an earlier arbiter reconnect and report their
cores."""
ALONE_S, LOOK_S, SOON_S = 0.5, 0.1, 0.01
"""Seconds between observations: of a single process, of several, and of those that lend their cores, because they need
these back as soon as they work."""

_logger = logging.getLogger("threadcast.arbiter")


class Arbiter:
    """Divides the cores of `machine` among the processes that connect to the Unix socket `path`.

    Usage: `with Arbiter(machine, path) as arbiter: arbiter.serve()`. Each connection stands for a process; when the
    connection ends for any reason, the process's cores are free. Members of the Unix group `group` may connect too. An
    invalid message is refused and ends its connection, without effect on other processes. Sockets that killed processes
    have left behind are removed. `now` returns seconds, `outsiders` reads what others use (None: of `machine`).
    """

    def __init__(
        self, machine: Machine, path: Path, *, group: str | None = None, now: Callable[[], float] = time.monotonic,
        outsiders: Outsiders | None = None,
    ) -> None:  # fmt: skip
        self._ledger = Ledger(machine)
        self._path, self._now = path, now
        self._connections: dict[str, Connection] = {}
        self._requests = RequestHandler(self._ledger, self._connections)
        self._numbers = count(1)
        self._listening = listen(path, group=group)
        self._file = file_id(path)
        remove_left_behind()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._rests = False
        """Whether nobody is accepted until the next look at everybody."""
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._gathers_until_s = now() + GATHER_S
        self._observed_s = 0.0
        self._outsiders, self._outsiders_s, self._own_s = outsiders or Outsiders(machine), 0.0, 0.0
        self._stopping = False

    def __enter__(self) -> Arbiter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self) -> None:
        """Serve connections until `stop` is called."""
        while not self._stopping:
            somebody_lends = any(party.lends for party in self._ledger.parties.values())
            for key, events in self._selector.select(timeout=SOON_S if somebody_lends else self._every_s()):
                if key.fileobj is self._listening:
                    self._accept()
                elif key.data is not None and events & selectors.EVENT_WRITE:
                    self._send_rest(key.data)
                elif key.data is not None:
                    self._read(key.data)
            if everybody := self._now() >= self._observed_s + self._every_s():
                self._observed_s = self._now()
                self._listen_again()
            self._observe(everybody=everybody)
            if self._now() >= self._gathers_until_s:
                if everybody:
                    self._ledger.explore(self._now())
                self._send_orders()
                self._confirm_for_silent()

    def stop(self) -> None:
        """End `serve`. May be called from another thread or a signal handler."""
        self._stopping = True
        self._wake.send(b"x")

    def close(self) -> None:
        """Close all sockets and remove the socket file if it is still this one's; processes keep their cores."""
        for connection in self._connections.values():
            connection.channel.close()
        for one in (self._listening, self._woken, self._wake, self._selector):
            one.close()
        remove(self._path, self._file)

    def _every_s(self) -> float:
        alone = len(self._ledger.parties) < 2 and self._now() >= self._gathers_until_s
        return ALONE_S if alone else LOOK_S

    def _observe(self, *, everybody: bool) -> None:
        """Update which processes compute and which wait: all of them for `everybody`, else only those that lend."""
        now_s, parties = self._now(), self._ledger.parties
        joined = [connection for name, connection in self._connections.items() if name in parties]
        processes = {connection.process for connection in joined}
        for connection in joined:
            if everybody or parties[connection.name].lends:
                before_s = connection.watch.cpu_s
                activity = connection.watch.observe(now_s, processes)
                self._ledger.set_activity(connection.name, activity, now_s)
                self._own_s += connection.watch.cpu_s - before_s
                if connection.is_kept and connection.watch.demand is not None:
                    self._ledger.set_demand(connection.name, connection.watch.demand, now_s)
                if connection.watch.gone:
                    self._drop(connection, "it ended")
        if everybody and now_s >= self._outsiders_s + ALONE_S:
            self._outsiders_s = now_s
            self._observe_others(now_s)

    def _observe_others(self, now_s: float) -> None:
        """Update what is left to processes that are not attached, unless /proc does not show all that are."""
        watches = [one.watch for name, one in self._connections.items() if name in self._ledger.parties]
        used = self._outsiders.used(self._own_s, now_s)
        if used is not None and all(watch.was_there for watch in watches):
            own = {member for watch in watches for member in watch.members}
            before = self._ledger.left
            self._ledger.leave_to_others(used, now_s, lambda: self._outsiders.pinned(own))
            if self._ledger.left != before:
                _logger.info("%d cores are left to processes that are not attached", self._ledger.left)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except OSError as error:  # whoever called has gone, or there are too many open files
            _logger.warning("a process could not connect: %s", error)
            self._selector.unregister(self._listening)  # else it is ready again at once
            self._rests = True
            return
        connection = Connection(Channel(accepted), peer(accepted), next(self._numbers))
        self._connections[connection.name] = connection
        self._selector.register(connection.channel, selectors.EVENT_READ, connection)

    def _listen_again(self) -> None:
        if self._rests:
            self._rests = False
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _read(self, connection: Connection) -> None:
        try:
            for message in connection.channel.receive():
                requests = requests_of(message)
                if not requests:
                    self._requests.require_joined(connection)
                for name, value in requests.items():
                    answer = self._requests.handle(connection, name, value, self._now())
                    if answer is not None:
                        self._send(connection, answer)
                if connection.name not in self._connections:  # it could not be answered
                    return
        except InvalidInput as error:
            self._send(connection, {"error": str(error)})
            self._drop(connection, str(error))
        except OSError:
            self._drop(connection, "it ended")

    def _send_orders(self) -> None:
        now_s = self._now()
        for name, (number, cores) in self._ledger.orders().items():
            connection = self._connections[name]
            connection.order, connection.cores, connection.ordered_s = number, cores, now_s
            self._send(connection, {"cores": self._requests.cpus_of(cores), "order": number})

    def _confirm_for_silent(self) -> None:
        """Count orders that were not confirmed in time as confirmed, so that other processes get the cores."""
        now_s = self._now()
        for name, connection in self._connections.items():
            release_s = 0.0 if connection.watch.activity.stopped else RELEASE_S
            if connection.ordered_s is not None and now_s > connection.ordered_s + release_s:
                connection.ordered_s = None
                if name in self._ledger.parties:
                    _logger.warning("%s did not let go of cores; they are given to others", connection)
                    self._ledger.confirm(name, connection.order, connection.cores)

    def _send(self, connection: Connection, message: dict[str, Any]) -> None:
        """Send a message, its last part later if it does not fit; if an earlier one still waits, end the connection."""
        try:
            connection.channel.send(message)
        except OSError as error:
            self._drop(connection, f"it cannot be sent anything: {error}")
            return
        if connection.channel.has_unsent:
            self._selector.modify(connection.channel, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _send_rest(self, connection: Connection) -> None:
        try:
            connection.channel.flush()
        except OSError:
            self._drop(connection, "it cannot be sent anything")
            return
        if not connection.channel.has_unsent:
            self._selector.modify(connection.channel, selectors.EVENT_READ, connection)

    def _drop(self, connection: Connection, why: str) -> None:
        if self._connections.pop(connection.name, None) is None:
            return
        self._selector.unregister(connection.channel)
        connection.channel.close()
        if connection.name in self._ledger.parties:
            _logger.info("%s left: %s", connection, why)
        self._ledger.leave(connection.name, self._now())
