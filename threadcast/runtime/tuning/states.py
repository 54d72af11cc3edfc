"""The states of tuning one kind of call, and the only moves between them.

    STARTING ──> RESUMED ──┐                      (or to COMPARING, with a plan of calls of other shapes)
        └──────────────────┴> WAITING ──> PROBING <──> PLANNING <──> TRYING ──> COMPARING     for each variant
                                 └─<──────────<────────────<────────────<───────────┴──> SETTLED <──> COMPARING

RESUMED also goes to SETTLED, once the stored plan has proved as fast as it was, or to COMPARING if it has not. SETTLED
goes to PROBING for the variant with fused operators, to COMPARING for a backend or where what was kept is doubted, and
to WAITING where all is measured anew. From every state it can go to GIVEN_UP, where the default runs for good, and to
CLOSED.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class State(Enum):
    """What the steps of a call are used for."""

    STARTING = "starting"
    """No step has run."""
    RESUMED = "resumed"
    """A plan that an earlier process stored runs, and is watched: it must be as fast as it was."""
    WAITING = "waiting"
    """The best way known runs, until it is known how long PyTorch takes, the next variant of the graph is ready, and
    learning may lose as much time as trying it takes."""
    PROBING = "probing"
    """Operators run one after the other and are timed: a look."""
    PLANNING = "planning"
    """A plan is being made in another process; the fastest way so far runs meanwhile."""
    TRYING = "trying"
    """A new plan runs, to see whether it takes as long as it predicts."""
    COMPARING = "comparing"
    """The best contender so far and the next one run by turns, until it is clear which is faster."""
    SETTLED = "settled"
    """The fastest contender runs, and is watched: it must stay as fast, and do what the default does."""
    GIVEN_UP = "given up"
    """Something failed: the default runs for good."""
    CLOSED = "closed"
    """Nothing runs any more."""


class SearchStage(Enum):
    """How far the search for backends is."""

    WAITS = "waits"
    """It may begin."""
    WORKS = "works"
    """It is at work beside the steps."""
    OVER = "over"
    """It has ended, or there is none."""


_ENDS = frozenset({State.GIVEN_UP, State.CLOSED})
LEGAL_MOVES: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RESUMED, State.WAITING, State.COMPARING}) | _ENDS,
    State.RESUMED: frozenset({State.WAITING, State.SETTLED, State.COMPARING}) | _ENDS,
    State.WAITING: frozenset({State.PROBING, State.PLANNING, State.SETTLED}) | _ENDS,
    State.PROBING: frozenset({State.PLANNING, State.WAITING}) | _ENDS,
    State.PLANNING: frozenset({State.TRYING, State.PROBING, State.WAITING, State.COMPARING}) | _ENDS,
    State.TRYING: frozenset({State.PLANNING, State.PROBING, State.WAITING, State.COMPARING}) | _ENDS,
    State.COMPARING: frozenset({State.WAITING, State.SETTLED, State.COMPARING}) | _ENDS,
    State.SETTLED: frozenset({State.COMPARING, State.PROBING, State.PLANNING, State.WAITING}) | _ENDS,
    State.GIVEN_UP: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}
"""For each state, the states to which it may change."""

HISTORY = 100
"""Number of latest moves that are remembered."""


class Move(NamedTuple):
    """A change of state from `source` to `target`, and its reason."""

    source: State
    target: State
    reason: str


class IllegalMove(RuntimeError):
    """Raised for a move that `LEGAL_MOVES` forbids, or an event that the state does not expect: a bug in threadcast.

    `history` holds the latest moves, the last one last.
    """

    def __init__(self, what: str, history: tuple[Move, ...]) -> None:
        path = "\n".join(f"  {move.source.value} -> {move.target.value}: {move.reason}" for move in history)
        super().__init__(f"{what}; the moves before:\n{path or '  none'}")
        self.history = history


class Moves:
    """The current state, and the moves that led to it. `moved` is called after each."""

    def __init__(self, state: State = State.STARTING, *, moved: Callable[[Move], None] = lambda _: None) -> None:
        self.state = state
        self._moved = moved
        self._history: deque[Move] = deque(maxlen=HISTORY)

    @property
    def history(self) -> tuple[Move, ...]:
        """The latest moves, the last one last."""
        return tuple(self._history)

    def to(self, target: State, reason: str) -> None:
        """Change to `target`; IllegalMove where `LEGAL_MOVES` forbids it."""
        if target not in LEGAL_MOVES[self.state]:
            raise self.illegal(f"{self.state.value} -> {target.value} ({reason})")
        move = Move(self.state, target, reason)
        self._history.append(move)
        self.state = target
        self._moved(move)

    def expect(self, event: str, *states: State) -> None:
        """Raise IllegalMove unless the current state is one of `states`; `event` names what happened."""
        if self.state not in states:
            raise self.illegal(f"{event} while {self.state.value}")

    def illegal(self, what: str) -> IllegalMove:
        """Return the error for something that must not happen in the current state; `what` describes it."""
        return IllegalMove(f"illegal: {what}", self.history)
