"""What the requests of processes mean to the arbiter: each changes the ledger, or is answered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.malleable.connection import Connection
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.limits import Cores
from threadcast.malleable.messages import Join

_logger = logging.getLogger("threadcast.arbiter")


class RequestHandler:
    """Carries out requests on `ledger`. Processes name cores by CPU numbers, the ledger by ids; this converts them.

    `connections` are all connections by name; the arbiter adds and removes them.
    """

    def __init__(self, ledger: Ledger, connections: Mapping[str, Connection]) -> None:
        self._ledger, self._connections = ledger, connections
        self._core_of = {cpu: core.id for core in ledger.machine.cores for cpu in core.cpus}
        self._cpus_of = {core.id: core.cpus for core in ledger.machine.cores}

    def handle(self, connection: Connection, member: str, value: Any, now_s: float) -> dict[str, Any] | None:
        """Carry out a request at the time `now_s`; return the answer as JSON, None where the request has none.

        It is the `value` of a member of a message, as `messages.requests_of` returns it.

        InvalidInput for a request that is not allowed: from a process that has not joined, or with wrong numbers.
        """
        name = connection.name
        if member == "who":
            return _process_list(self._ledger, self._connections, self._cpus_of)
        if member == "join":
            self._join(connection, value, now_s)
            return None
        self.require_joined(connection)
        match member:
            case "holds":
                self._ledger.confirm(name, value.order, self._ids_of(value.holds))
                if value.order >= connection.order:
                    connection.ordered_s = None
            case "bounds":
                allowed = self._allowed(value.may)
                self._ledger.set_bounds(name, value.least, value.most, now_s, allowed=allowed)
            case "progress":
                self._ledger.expect(name, value, now_s)
            case "steps":
                self._ledger.report(name, value, now_s)
            case "learning":
                connection.learning = value
        return None

    def require_joined(self, connection: Connection) -> None:
        """Raise FormatError unless the process has joined."""
        if connection.name not in self._ledger.parties:
            raise FormatError("join first")

    def cpus_of(self, cores: Iterable[int]) -> Cores:
        """The cores with these ids, each as the tuple of its hardware threads' CPU numbers."""
        return tuple(self._cpus_of[core] for core in cores)

    def _join(self, connection: Connection, asked: Join, now_s: float) -> None:
        name, allowed = connection.name, self._allowed(asked.bounds.may)
        if name in self._ledger.parties:
            raise FormatError("this connection has joined already")
        connection.title = asked.name
        if asked.process is not None:
            connection.stand_for(asked.process)
        self._ledger.join(name, asked.claim, self._ids_of(asked.holds), now_s, allowed=allowed)
        _logger.info("%s joined", connection)

    def _ids_of(self, cores: Cores) -> list[int]:
        """Ids of these cores, without cores that this machine lacks."""
        return sorted({self._core_of[cpu] for core in cores for cpu in core if cpu in self._core_of})

    def _allowed(self, cores: Cores | None) -> frozenset[int] | None:
        """Ids of the cores of which a process may use every hardware thread; None if these are all cores or none."""
        if cores is None:
            return None
        cpus = {cpu for core in cores for cpu in core}
        found = frozenset(core for core, own in self._cpus_of.items() if cpus.issuperset(own))
        return found if 0 < len(found) < len(self._cpus_of) else None


def _process_list(
    ledger: Ledger, connections: Mapping[str, Connection], cpus_of: Mapping[int, tuple[int, ...]]
) -> dict[str, Any]:
    """The processes that share the machine, as JSON: of each its cores (as CPU numbers), weight and rates."""
    processes = []
    for name, party in ledger.parties.items():
        connection, rates = connections[name], party.rates.by_cores
        processes.append(
            {
                "process": connection.process, "name": connection.title,
                "cores": [list(cpus_of[core]) for core in sorted(party.granted)], "weight": party.claim.weight,
                "steps_per_s": rates.get(len(party.target)),
                "by_cores": {str(cores): rate for cores, rate in sorted(rates.items())},
                "threads": connection.watch.demand, "lends": party.lends, "learning": connection.learning,
            }
        )  # fmt: skip
    return {
        "machine": ledger.machine.name, "cores": len(ledger.machine), "left": ledger.left, "processes": processes
    }  # fmt: skip
