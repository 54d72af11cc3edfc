"""The arbiter's list of the processes that share the machine, which `threadcast top` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threadcast.malleable.connection import Connection
from threadcast.malleable.ledger import Ledger
from threadcast.malleable.party import Party


def process_list(
    ledger: Ledger, connections: Mapping[str, Connection], cpus_of: Mapping[int, tuple[int, ...]], now_s: float
) -> dict[str, Any]:
    """Return the list as JSON: the machine, and each process's cores (as CPU numbers), weight, rates and deadline."""
    processes = []
    for name, party in ledger.parties.items():
        connection, status = connections[name], deadline_status(party, now_s)
        rates = party.rates.by_cores
        processes.append(
            {
                "process": connection.process, "name": connection.title,
                "cores": [list(cpus_of[core]) for core in sorted(party.granted)], "weight": party.claim.weight,
                "steps_per_s": rates.get(len(party.target)),
                "by_cores": {str(cores): rate for cores, rate in sorted(rates.items())},
                "threads": connection.watch.demand, "deadline": status, "lends": party.lends,
                "learning": connection.learning,
            }
        )  # fmt: skip
    return {
        "machine": ledger.machine.name, "cores": len(ledger.machine), "left": ledger.left, "processes": processes
    }  # fmt: skip


def deadline_status(party: Party, now_s: float) -> dict[str, Any] | None:
    """Return as JSON the work left until a process's deadline, and whether it will be met (None: not known yet).

    None without a deadline.
    """
    if (deadline := party.deadline) is None:
        return None
    return {"steps": deadline.left(party.steps), "in_s": round(deadline.by_s - now_s, 3), "met": party.on_time}
