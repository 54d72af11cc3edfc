"""Writes a plan as what differs from another plan of the same ops, for plans that are stored by the dozen.

Plans for fewer cores differ from the plan for all cores in most ops. What they share with it, and what follows from the
rest, is left out: ids, teams that the other plan has too, the order of ops that are not moved, and most starts, as ops
start when another finishes. Nothing is rounded. For 5,000 ops on 128 cores the JSON form is a fifth to an eighth of the
plan's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threadcast.core import Placement, Plan
from threadcast.core.errors import FormatError, InvalidInput
from threadcast.core.json_reading import check_schema

SCHEMA = "threadcast.plan-difference/1"

Team = tuple[tuple[int, ...], int, int]
"""Cores, number of threads, and the hardware thread of each core."""
Runs = list[list[int]]
"""Integers as pairs of a first number and a length: [3, 2] is 3, 4."""


def difference(plan: Plan, base: Plan) -> dict[str, Any]:
    """Return a JSON document from which `restored` makes `plan`, given `base`; InvalidInput for plans of other ops.

    Ops are numbered by their places in `base.ops`. Members, with only those ops whose value does not follow from
    `base` and the others: `teams`, which `base` lacks; `moved`, the ops and their places in `plan.ops`; `team_of`,
    `seconds`, `after` (the op at whose finish an op starts), `starts` and `finishes`, each the ops and their values.
    """
    number = {placed.id: op for op, placed in enumerate(base.ops)}
    if number.keys() != {placed.id for placed in plan.ops}:
        raise InvalidInput("the plans are of different ops")
    teams = dict.fromkeys(map(_team, base.ops))
    known = len(teams)
    teams.update(dict.fromkeys(map(_team, plan.ops)))
    number_of = {team: i for i, team in enumerate(teams)}
    team_of: dict[int, int] = {}
    after: dict[int, int] = {}
    seconds: dict[int, float] = {}
    starts: dict[int, float] = {}
    finishes: dict[int, float] = {}
    clock = _Clock(_awaited(base))
    for placed in plan.ops:
        op = number[placed.id]
        lasts_s = base.ops[op].duration_s
        if _team(placed) != _team(base.ops[op]):
            team_of[op] = number_of[_team(placed)]
        if placed.start_s != clock.start_s(op, placed.cores):
            if placed.start_s in clock.finished:
                after[op] = clock.finished[placed.start_s]
            else:
                starts[op] = placed.start_s
        if placed.start_s + lasts_s != placed.finish_s:
            lasts_s = seconds[op] = placed.duration_s
        if placed.start_s + lasts_s != placed.finish_s:
            finishes[op] = placed.finish_s
        clock.note(op, placed.cores, placed.finish_s)
    return {
        "schema": SCHEMA, "cores": plan.cores, "policy": plan.policy, "lower_bound_s": plan.lower_bound_s,
        "guarded": list(plan.guarded), "curves_from": plan.curves_from,
        "teams": [[_runs(cores), threads, first] for cores, threads, first in list(teams)[known:]],
        "moved": _columns(_moved([number[placed.id] for placed in plan.ops])),
        "team_of": _columns(team_of), "seconds": _columns(seconds), "after": _columns(after),
        "starts": _columns(starts), "finishes": _columns(finishes),
    }  # fmt: skip


def restored(document: Mapping[str, Any], base: Plan) -> Plan:
    """Return the plan that `difference` wrote; FormatError where the document is not a difference from `base`."""
    check_schema(document, SCHEMA)
    try:
        known = dict.fromkeys(map(_team, base.ops))
        teams = [*known, *((tuple(_numbers(cores)), threads, first) for cores, threads, first in document["teams"])]
        moved, team_of, seconds, after, starts, finishes = (
            _read_columns(document[name]) for name in ("moved", "team_of", "seconds", "after", "starts", "finishes")
        )
        ops: list[Placement] = []
        clock = _Clock(_awaited(base))
        for op in _order(len(base.ops), moved):
            usual = base.ops[op]
            cores, threads, first = teams[team_of[op]] if op in team_of else _team(usual)
            start_s = clock.finish_s[after[op]] if op in after else clock.start_s(op, cores)
            start_s = starts.get(op, start_s)
            finish_s = finishes[op] if op in finishes else start_s + seconds.get(op, usual.duration_s)
            clock.note(op, cores, finish_s)
            ops.append(Placement(usual.id, cores, threads, start_s, finish_s, first))
        return Plan(
            document["cores"], document["policy"], tuple(ops), document["lower_bound_s"],
            tuple(document["guarded"]), document["curves_from"],
        )  # fmt: skip
    except InvalidInput as error:
        raise FormatError(str(error)) from error
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise FormatError(f"not a difference from this plan: {error!r}") from error


class _Clock:
    """Knows when the ops so far have finished: `finished` are their times, each with one of the ops.

    `awaited`: for some ops another, which they may be expected to wait for.
    """

    def __init__(self, awaited: Mapping[int, int]) -> None:
        self.finish_s: dict[int, float] = {}
        self.finished: dict[float, int] = {}
        self._awaited = awaited
        self._free_s: dict[int, float] = {}

    def start_s(self, op: int, cores: Iterable[int]) -> float:
        """When `op` may be expected to start on `cores`: when they are free and the op that it awaits has finished."""
        free_s = max([self._free_s.get(core, 0.0) for core in cores])
        return max(free_s, self.finish_s.get(self._awaited.get(op, -1), 0.0))

    def note(self, op: int, cores: Iterable[int], finish_s: float) -> None:
        self.finish_s[op] = finish_s
        self.finished.setdefault(finish_s, op)
        self._free_s.update(dict.fromkeys(cores, finish_s))


def _awaited(plan: Plan) -> dict[int, int]:
    """For each op that starts later than its cores are free, by its place in the plan, an op that finishes then."""
    clock, found = _Clock({}), dict[int, int]()
    for op, placed in enumerate(plan.ops):
        if placed.start_s != clock.start_s(op, placed.cores) and placed.start_s in clock.finished:
            found[op] = clock.finished[placed.start_s]
        clock.note(op, placed.cores, placed.finish_s)
    return found


def _team(placed: Placement) -> Team:
    return placed.cores, placed.threads, placed.hardware_thread


def _moved(order: Sequence[int]) -> dict[int, int]:
    """The places in `order` of as few ops as possible such that the numbers of all others rise."""
    ends: list[int] = []  # the least last numbers of rising sequences, by length
    length = []
    for op in order:
        at = bisect_left(ends, op)
        ends[at : at + 1] = [op]
        length.append(at + 1)
    stay: set[int] = set()
    limit, wanted = len(order), len(ends)
    for op, reached in zip(reversed(order), reversed(length)):
        if reached == wanted and op < limit:
            stay.add(op)
            limit, wanted = op, wanted - 1
    return {op: place for place, op in enumerate(order) if op not in stay}


def _order(n: int, moved: Mapping[int, int]) -> list[int]:
    at = {place: op for op, place in moved.items()}
    staying = iter([op for op in range(n) if op not in moved])
    return [at[place] if place in at else next(staying) for place in range(n)]


def _columns(values: Mapping[int, Any]) -> list[Any]:
    ops = sorted(values)
    return [_runs(ops), [values[op] for op in ops]]


def _read_columns(columns: Sequence[Any]) -> dict[int, Any]:
    ops, values = columns
    return dict(zip(_numbers(ops), values, strict=True))


def _runs(numbers: Iterable[int]) -> Runs:
    runs: Runs = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs


def _numbers(runs: Runs) -> list[int]:
    return [first + i for first, length in runs for i in range(length)]
