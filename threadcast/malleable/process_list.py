"""The arbiter's list of the processes that share the machine, which `threadcast top` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadcast.malleable.connection import Connection
from threadcast.malleable.ledger import Ledger


def process_list(
    ledger: Ledger, connections: Mapping[str, Connection], cpus_of: Mapping[int, tuple[int, ...]]
) -> dict[str, Any]:
    """Return the list as JSON: the machine, and each process's cores (as CPU numbers), weight and rates."""
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
