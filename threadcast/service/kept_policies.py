"""Policies that were made for a graph, so that a runtime can ask at every event without sending it again."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from threadcast.scheduler.policies import Policy


class KeptPolicies:
    """The `limit` policies used last, by a name that cannot be guessed. Safe to use from threads.

    They live in this process alone: where several serve, another one may answer that it does not know the name.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._policies: OrderedDict[str, Policy] = OrderedDict()

    def keep(self, policy: Policy) -> str:
        """Keep `policy` and return its name; the one not used for longest goes when there are too many."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._policies[name] = policy
            if len(self._policies) > self._limit:
                self._policies.popitem(last=False)
        return name

    def get(self, name: str) -> Policy | None:
        """The policy of this name; None if it is not kept (any more)."""
        with self._lock:
            if name in self._policies:
                self._policies.move_to_end(name)
            return self._policies.get(name)
