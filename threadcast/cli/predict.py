"""`threadcast predict`: the time of an op, or of each op of a network, at every thread count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click
from rich.table import Table

from threadcast import networks
from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import common, predictor_options, setting
from threadcast.cli.output import Output, table
from threadcast.cli.plan_input import (
    Question,
    chosen_machines,
    chosen_predictor,
    chosen_store,
    read_problem,
    remote_remarks,
)
from threadcast.core import Affinity, Case, CurveTable, Machine, Op
from threadcast.core.curve_codec import to_answer
from threadcast.core.errors import NotFound
from threadcast.core.settings import Settings

_OP_KEY = re.compile(r".+-[0-9a-f]{16}")


@click.command()
@network_options(metavar="NETWORK|GRAPH.json|OP-KEY")
@click.option("--machine", help="Fingerprint of a machine in the store, or a machine's file.")
@click.option(
    "--model",
    help="Registered model, its alias, or a kind [default: the champion, else joint_process].",
)
@click.option("--curves", "every_curve", is_flag=True, help="Show every op's whole curve, not only its best case.")
@setting("cores", "--cores")
@predictor_options
@common
def command(
    output: Output,
    settings: Settings,
    network: NetworkChoice,
    machine: str | None,
    model: str | None,
    every_curve: bool,
) -> None:
    """Forecast the time of an op of the store, or of every op of a network or graph file, in every case.

    low and high bound a 90 % interval; source says which points were measured, interpolated, learned or extrapolated.
    """
    if _OP_KEY.fullmatch(network.spec):
        ops, curves, chosen, remarks = _of_op(network.spec, machine, model, settings)
        counts = [1]
    else:
        _check_known(network.spec)
        problem, remarks = read_problem(Question(network, machine, model), settings)
        same: dict[tuple[str, bytes], list[int]] = {}  # a graph's own curves may differ between ops of one key
        for i, op in enumerate(problem.graph.ops):
            same.setdefault((op.key, problem.curves.seconds[i].tobytes()), []).append(i)
        first, counts = [rows[0] for rows in same.values()], [len(rows) for rows in same.values()]
        ops, curves, chosen = [problem.graph.ops[i] for i in first], problem.curves.take(first), problem.machine
    curves, fingerprint = _on(chosen, curves), chosen.fingerprint
    for remark in remarks:
        output.warn(remark)
    best = [curves[i].best() for i in range(len(ops))]
    document = {
        **to_answer(curves), "machine": fingerprint,
        "ops": [
            {
                "key": op.key, "kind": op.kind, "count": count,
                "best": {"threads": case.threads, "affinity": case.affinity.value},
            }
            for op, case, count in zip(ops, best, counts)
        ],
    }  # fmt: skip
    said = f"{curves.model} on {fingerprint}"
    if every_curve or len(ops) == 1:
        output.result(document, said, *(_curve_table(op, curves, i) for i, op in enumerate(ops)))
    else:
        output.result(document, said, _best_table(ops, curves, counts))


def _check_known(spec: str) -> None:
    """Raise NotFound for a name that neither a network nor an op can have."""
    if {"/", ":"} & set(spec) or spec.endswith((".json", ".py")):
        return
    try:
        networks.sizes(spec)
    except NotFound as error:
        raise NotFound(f"no op of the store has the key {spec!r}; {error}") from None


def _of_op(
    key: str, machine: str | None, model: str | None, settings: Settings
) -> tuple[list[Op], CurveTable, Machine, list[str]]:
    with ExitStack() as open_stores:
        measured, chosen = chosen_machines(machine, settings, open_stores)
        store = chosen_store(settings, open_stores)
        ops = [op for op in store.ops(kinds=[key.rpartition("-")[0]]) if op.key == key]
        if not ops:
            raise NotFound(f"no op {key} in {store.name}; `threadcast profile NETWORK` stores a network's ops")
        predictor = chosen_predictor(model, measured, settings, open_stores)
        curves = predictor.curves(ops)
    return ops, curves, chosen, remote_remarks(predictor)


def _on(machine: Machine, curves: CurveTable) -> CurveTable:
    """The curves at the cases of `machine`, which may be a part of the one that they are for.

    Of counts that the curves offer at the other affinity alone, that one is taken: one thread is SPREAD on a machine of
    several cache groups, and COMPACT on one group of it. Counts that only the curves have stay: a graph gave them.
    """
    known = set(curves.cases)
    columns: dict[Case, Case] = {}
    for case in machine.cases_with(case.threads for case in known if case.affinity is Affinity.COMPACT):
        others = (Case(case.threads, affinity) for affinity in Affinity)
        if same := next((column for column in (case, *others) if column in known), None):
            columns[case] = same
    return replace(curves.at_cases(tuple(columns.values())), cases=tuple(columns))


def _curve_table(op: Op, curves: CurveTable, row: int) -> Table:
    curve = curves[row]
    columns = ("threads", "affinity", "seconds_s", "low_s", "high_s", "source", "")
    points = zip(curve.cases, curve.seconds, curve.low, curve.high, curve.source)
    cells = [
        (case.threads, case.affinity.value, *map(float, times), source.value, "best" if case == curve.best() else "")
        for case, *times, source in points
    ]
    return table(columns, cells, title=op.key)


def _best_table(ops: Sequence[Op], curves: CurveTable, counts: Sequence[int]) -> Table:
    """A table with one row for each op, those with most total time first."""
    rows: list[tuple[Any, ...]] = []
    for i, op in enumerate(ops):
        curve = curves[i]
        best = curve.best()
        seconds = curve.at(best)
        fewest = curve.at(min(curve.cases, key=lambda case: case.threads))
        source = curve.source[curve.cases.index(best)].value
        rows.append((op.key, counts[i], str(best), seconds, fewest / seconds if seconds else None, source))
    rows.sort(key=lambda cells: -cells[1] * cells[3])
    return table(("op", "times", "best case", "best_s", "speed-up", "source"), rows)
