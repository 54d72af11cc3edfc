"""A cache of policies for graphs, so that a runtime can request every decision without sending the graph again."""

from __future__ import annotations

import secrets

from threadcast.prediction.lru_cache import LruCache
from threadcast.scheduler.policies import Policy


class PolicyCache:
    """The `most` policies that were used last, by names that cannot be guessed. Safe to use from threads.

    Each service process has its own: another process of the same service does not know the names of this one.
    """

    def __init__(self, most: int) -> None:
        self._policies: LruCache[str, Policy] = LruCache(most)

    def add(self, policy: Policy) -> str:
        """Store `policy` and return its new name."""
        name = secrets.token_urlsafe(12)
        self._policies.put(name, policy)
        return name

    def get(self, name: str) -> Policy | None:
        """The policy of this name; None where there is none, or it was dropped."""
        return self._policies.get(name)
