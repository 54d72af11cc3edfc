"""A problem as arrays: each op's useful thread counts and the graph in compressed rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.problem import Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """What the search knows of a problem; cores are equal and any of them can form a team.

    A *choice* is a position among an op's useful counts: those that no narrower one equals or beats, ascending in
    `width` and descending in `seconds`. `width`, `seconds`, `position` (in `Times.counts`): (n_ops, n_choices),
    filled up with the op's last choice; `choices`: (n_ops,) how many there are. Edges: the predecessors of op i are
    `before[before_at[i]:before_at[i + 1]]`, its successors likewise in `after`. `order` is topological.
    """

    cores: int
    width: Ints
    seconds: Floats
    position: Ints
    choices: Ints
    before_at: Ints
    before: Ints
    after_at: Ints
    after: Ints
    order: Ints

    def __len__(self) -> int:
        return len(self.order)

    @classmethod
    def of(cls, problem: Problem, seconds: Floats | None = None) -> Instance:
        """The instance of `problem`, with each op's time at the better affinity or, where given, of `seconds`."""
        seconds = problem.times.seconds if seconds is None else seconds
        position, choices = chosen(falling(seconds))
        rows = np.arange(len(choices))[:, None]
        graph = problem.graph
        before_at, before = edge_rows(graph.predecessors)
        after_at, after = edge_rows(graph.successors)
        return cls(
            len(problem.machine), np.asarray(problem.times.counts, dtype=np.int32)[position],
            np.ascontiguousarray(seconds[rows, position]), position, choices,
            before_at, before, after_at, after, np.asarray(graph.topological_order, dtype=np.int32),
        )  # fmt: skip

    def reversed(self) -> Instance:
        """The same ops with every edge turned around."""
        return Instance(
            self.cores, self.width, self.seconds, self.position, self.choices,
            self.after_at, self.after, self.before_at, self.before, self.order[::-1].copy(),
        )  # fmt: skip

    def choice(self, positions: NDArray[np.int64]) -> Ints:
        """The choices of (n_ops,) positions in `Times.counts`, of useless counts the next narrower useful one."""
        wider = (self.position <= positions[:, None]).sum(axis=1)
        return np.asarray(np.clip(np.minimum(wider, self.choices) - 1, 0, None), dtype=np.int32)

    def positions(self, choice: Ints) -> Ints:
        """(n_ops,) positions of the choices in `Times.counts`."""
        return np.asarray(self.position[np.arange(len(choice)), choice])

    def widths(self, choice: Ints) -> Ints:
        """(n_ops,) cores of each op."""
        return np.asarray(self.width[np.arange(len(choice)), choice], dtype=np.int32)

    def times(self, choice: Ints) -> Floats:
        """(n_ops,) seconds of each op."""
        return np.asarray(self.seconds[np.arange(len(choice)), choice])


def falling(seconds: Floats) -> NDArray[np.bool_]:
    """Which (n_ops, n_counts) `seconds`, at ascending thread counts, no narrower count equals or beats."""
    earlier = np.minimum.accumulate(seconds, axis=1)
    useful = np.isfinite(seconds)
    useful[:, 1:] &= seconds[:, 1:] < earlier[:, :-1]
    return useful


def chosen(useful: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """(n_ops, n_choices) positions at which `useful` is true, filled up with the op's last; how many each op has."""
    choices = useful.sum(axis=1)
    position = np.argsort(~useful, axis=1, kind="stable")[:, : int(choices.max())]
    last = position[np.arange(len(choices)), choices - 1]
    position = np.where(np.arange(position.shape[1]) < choices[:, None], position, last[:, None])
    return position.astype(np.int32), choices.astype(np.int32)


def edge_rows(neighbours: tuple[tuple[int, ...], ...]) -> tuple[Ints, Ints]:
    """The neighbours of op i are `flat[at[i]:at[i + 1]]`; returns `at`, `flat`."""
    at = np.zeros(len(neighbours) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in neighbours], out=at[1:])
    flat = np.fromiter((other for row in neighbours for other in row), dtype=np.int32, count=int(at[-1]))
    return at, flat
