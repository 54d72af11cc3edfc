"""A problem as arrays, for search and compiled loops: each op's useful thread counts and the graph's edges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threadcast.scheduler.problem import Problem
from threadcast.scheduler.problem.compressed_rows import CompressedRows
from threadcast.scheduler.problem.useful_widths import useful_widths

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Allotment(NamedTuple):
    """The cores and the seconds of each op at its chosen thread count; (n_ops,) each."""

    width: Ints
    seconds: Floats


class Instance(NamedTuple):
    """A problem as the search sees it: all cores are equal.

    A *choice* is a position among an op's useful thread counts (`useful_widths`). `width`, `seconds` and `position` (in
    `Times.counts`): (n_ops, n_choices), width rising and seconds falling along a row; rows are padded with the op's
    last choice. `choices`: (n_ops,) number of choices of each op. `order`: (n_ops,) ops, dependencies first.
    """

    cores: int
    width: Ints
    seconds: Floats
    position: Ints
    choices: Ints
    predecessors: CompressedRows
    successors: CompressedRows
    order: Ints

    @property
    def n_ops(self) -> int:
        """The number of ops; `len` would return the number of fields of the tuple."""
        return len(self.order)

    @classmethod
    def of(cls, problem: Problem, seconds: Floats | None = None) -> Instance:
        """Return the instance of `problem`; `seconds` (n_ops, n_counts): by default those of the better affinity."""
        seconds = problem.times.seconds if seconds is None else seconds
        position, choices = positions_of(useful_widths(seconds))
        graph = problem.graph
        return cls(
            len(problem.machine),
            np.asarray(problem.times.counts, dtype=np.int64)[position],
            np.ascontiguousarray(np.take_along_axis(seconds, position, axis=1)),
            position,
            choices,
            CompressedRows.of(graph.predecessors),
            CompressedRows.of(graph.successors),
            np.asarray(graph.topological_order, dtype=np.int64),
        )

    def reversed(self) -> Instance:
        """Return the same ops with every edge turned around."""
        return self._replace(predecessors=self.successors, successors=self.predecessors, order=self.order[::-1].copy())

    def choice(self, positions: NDArray[np.int64]) -> Ints:
        """Return the choices of these (n_ops,) positions in `Times.counts`; useless counts become the next narrower."""
        wider = (self.position <= positions[:, None]).sum(axis=1)
        return np.asarray(np.clip(np.minimum(wider, self.choices) - 1, 0, None), dtype=np.int64)

    def positions(self, choice: Ints) -> Ints:
        """Return (n_ops,) positions of the choices in `Times.counts`."""
        return np.asarray(self.position[np.arange(len(choice)), choice])

    def widths(self, choice: Ints) -> Ints:
        """Return (n_ops,) numbers of cores of the ops with these choices."""
        return np.asarray(self.width[np.arange(len(choice)), choice], dtype=np.int64)

    def times(self, choice: Ints) -> Floats:
        """Return (n_ops,) seconds of the ops with these choices."""
        return np.asarray(self.seconds[np.arange(len(choice)), choice])

    def allotment(self, choice: Ints) -> Allotment:
        """Return numbers of cores and seconds of the ops with these choices."""
        return Allotment(self.widths(choice), self.times(choice))


def positions_of(useful: Bools) -> tuple[Ints, Ints]:
    """Return the columns in which each row of `useful` is true, and their numbers.

    The columns are (n_ops, n_choices), each row padded with its last one; the numbers are (n_ops,). Every row must have
    at least one.
    """
    choices = useful.sum(axis=1)
    position = np.argsort(~useful, axis=1, kind="stable")[:, : int(choices.max())]
    last = position[np.arange(len(choices)), choices - 1]
    position = np.where(np.arange(position.shape[1]) < choices[:, None], position, last[:, None])
    return position.astype(np.int64), choices.astype(np.int64)
