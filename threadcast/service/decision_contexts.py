"""What decisions are made from, by name: in the store for all processes of a service, and as policies in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from threadcast import __version__
from threadcast.core import Machine, OpGraph
from threadcast.core.curve_codec import from_codes, to_codes
from threadcast.prediction.lru_cache import LruCache
from threadcast.scheduler.policies import Policy, Problem, create
from threadcast.store import Store


@dataclass(frozen=True, slots=True)
class DecisionContext:
    """A problem, and the policy that decides about it; `policy()` makes this policy."""

    problem: Problem
    policy_name: str
    options: Mapping[str, Any]

    def policy(self) -> Policy:
        """Return a new policy; TypeError or ValueError where it refuses the options."""
        return create(self.policy_name, self.problem, **self.options)

    def to_bytes(self) -> bytes:
        """The content for the store, equal for equal contexts."""
        problem = self.problem
        return json.dumps({
            "version": __version__, "graph": problem.graph.to_json(), "machine": problem.machine.to_json(),
            "policy": self.policy_name, "options": dict(self.options),
            "curves": to_codes(problem.curves),
        }, sort_keys=True).encode()  # fmt: skip

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Read what `to_bytes` wrote; None for what another version of threadcast wrote."""
        try:
            head = json.loads(content)
            if head["version"] != __version__:
                return None
            graph, machine = OpGraph.from_json(head["graph"]), Machine.from_json(head["machine"])
            curves = from_codes(head["curves"])
        except (ValueError, LookupError, TypeError):
            return None
        return cls(Problem(graph, curves, machine), head["policy"], head["options"])


class DecisionContexts:
    """The contexts that runtimes name in place of a graph. Safe to use from threads.

    A context's name is a digest of its content, so that equal questions get equal names. `most_kept` contexts are in
    the store, where every process of a service finds them, and the policies of the `most_here` that this process used
    last are in memory. Policies decide by the state that they are given and nothing else, so the processes agree.
    """

    def __init__(self, store: Store, *, most_here: int, most_kept: int) -> None:
        self._store, self._most_kept = store, most_kept
        self._policies: LruCache[str, Policy] = LruCache(most_here)

    def add(self, context: DecisionContext, policy: Policy, about: Mapping[str, Any]) -> str:
        """Store a context and its policy, and what a list says about it; return its name."""
        content = context.to_bytes()
        name = hashlib.sha256(content).hexdigest()[:32]
        self._store.add_context(name, content, most=self._most_kept, about=about)
        self.keep(name, policy)
        return name

    def keep(self, name: str, policy: Policy) -> None:
        """Keep the policy of a stored context in memory."""
        self._policies.put(name, policy)

    def policy(self, name: str) -> Policy | None:
        """The policy of this context; None where this process has none in memory."""
        return self._policies.get(name)

    def stored(self, name: str) -> DecisionContext | None:
        """The context of this name from the store; None where there is none, or it was dropped."""
        content = self._store.context(name)
        return None if content is None else DecisionContext.from_bytes(content)
