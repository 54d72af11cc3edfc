"""`threadcast predict`: the time of an op, or of each op of a network, at every thread count."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click
from rich.table import Table

from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.op_choice import PART_OF_KEY, machine_of, name_of, names_of, op_by_key, op_by_name
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
from threadcast.core.topology import read_machine
from threadcast.networks import names as network_names
from threadcast.networks import sizes


@click.command()
@network_options(metavar="[NETWORK|GRAPH.json|OP-KEY|SIZE...]", several=True, required=False)
@click.option("--op", "called", help="An op of the store by its name or kind; its sizes follow: m=300 k=500.")
@click.option(
    "--machine",
    help="Fingerprint of a machine in the store, or a machine's file [default: of an op, the one that measured it].",
)
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
    networks: list[NetworkChoice],
    called: str | None,
    machine: str | None,
    model: str | None,
    every_curve: bool,
) -> None:
    """Forecast the time of an op of the store, or of every op of a network or graph file, in every case.

    `threadcast predict --op sgemm m=300 k=500 n=700` asks for an op as its table describes it, also in sizes that were
    not measured. `threadcast db ops` lists the ops of the store.

    low and high bound a 90 % interval; source says which points were measured, interpolated, learned or extrapolated.
    """
    words = [network.spec for network in networks]
    if called is None and len(words) != 1:
        raise click.UsageError("name one NETWORK, GRAPH.json or OP-KEY, or an op: --op sgemm m=300 k=500 n=700")
    if called is not None or _is_key(words[0]):
        ops, curves, chosen, remarks = _of_op(called, words, machine, model, settings)
        counts = [1]
    else:
        network = networks[0]
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
                "name": name_of(op), "key": op.key, "kind": op.kind, "count": count,
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
        sizes(spec)
    except NotFound as error:
        raise NotFound(f"no op of the store has the key {spec!r}; {error}") from None


def _is_key(spec: str) -> bool:
    """Whether it is the key of an op, or its beginning, and no network's name."""
    return PART_OF_KEY.fullmatch(spec) is not None and spec not in network_names()


def _of_op(
    called: str | None, words: Sequence[str], machine: str | None, model: str | None, settings: Settings
) -> tuple[list[Op], CurveTable, Machine, list[str]]:
    with ExitStack() as open_stores:
        store = chosen_store(settings, open_stores)
        if called is None:
            op = op_by_key(store, words[0])
            alike: Sequence[Op] = [op]
        else:
            op, alike = op_by_name(store, called, words)
        here = read_machine().fingerprint
        measured_on = machine or machine_of(store, alike, here)
        measured, chosen = chosen_machines(None if measured_on == here else measured_on, settings, open_stores)
        predictor = chosen_predictor(model, measured, settings, open_stores)
        curves = predictor.curves([op])
    return [op], curves, chosen, remote_remarks(predictor)


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
    return table(columns, cells, title=name_of(op))


def _best_table(ops: Sequence[Op], curves: CurveTable, counts: Sequence[int]) -> Table:
    """A table with one row for each op, those with most total time first."""
    rows: list[tuple[Any, ...]] = []
    for i, name in enumerate(names_of(ops)):
        curve = curves[i]
        best = curve.best()
        seconds = curve.at(best)
        fewest = curve.at(min(curve.cases, key=lambda case: case.threads))
        source = curve.source[curve.cases.index(best)].value
        rows.append((name, counts[i], str(best), seconds, fewest / seconds if seconds else None, source))
    rows.sort(key=lambda cells: -cells[1] * cells[3])
    columns = ("op", "times", "best case", "best_s", "speed-up", "source")
    return table(columns, rows, unneeded=(("source",), ("speed-up",), ("times",)))
