"""Slow-downs of ops that run side by side, for commands: measures them, plans with them, learns them from steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from threadcast.cli.output import Output, table
from threadcast.core import Machine, OpGraph, Trace
from threadcast.core.corun import CoRunTable, read_table, write_table
from threadcast.core.settings import Settings
from threadcast.scheduler.interference.bad_pairs import learned, observed_slowdowns
from threadcast.scheduler.interference.class_slowdown import ClassInterference
from threadcast.scheduler.policies import Problem

if TYPE_CHECKING:
    from threadcast.collector.corun import CoRunReport

CALIBRATION_S = 0.1
"""Seconds for each of about a dozen numbers of the calibration.

Little time is enough to tell the classes of ops apart.
"""


def interference_of(
    problem: Problem, settings: Settings, output: Output, *, off: bool = False
) -> ClassInterference | None:
    """The known slow-downs of the problem's machine; None where there are none, or they are turned `off`.

    Warns of files of other machines that cannot be read.
    """
    if off:
        return None

    def warn(error: Exception) -> None:
        output.warn(f"the slow-downs of another machine are passed over: {error}")

    known = read_table(settings["corun"], problem.machine, on_damaged=warn)
    return None if known is None else ClassInterference(problem, known)


def measure(graph: OpGraph, machine: Machine, settings: Settings, output: Output) -> CoRunReport:
    """Measure how much classes of the graph's ops slow each other down, and add that to the machine's stored table."""
    from threadcast.collector.calibration import calibrate
    from threadcast.collector.corun import limits_of, measure_corun, prior_of

    calibration = calibrate(machine, seconds=CALIBRATION_S)
    with output.progress("timing pairs of ops") as bar:
        report = measure_corun(
            graph.ops, machine, limits_of(calibration, machine), mean_s=settings["profile.budget_s"],
            prior=prior_of(calibration, machine),
            on_progress=lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
    for pair, reason in list(report.failed.items())[:1]:
        output.warn(f"{len(report.failed)} pairs were left out; {pair[0]} beside {pair[1]}: {reason}")
    known = read_table(settings["corun"], machine)
    updated = known.updated(report.table) if known and known.machine == machine else report.table
    write_table(settings["corun"], updated)
    return report


def rows(report: CoRunReport) -> dict[str, list[dict[str, Any]]]:
    """The measured slow-downs by class and the forecasts of the others, as lists of JSON objects by their name."""
    document = report.table.to_json()
    measured = {(row["class"], row["beside"]) for row in document["classes"]}
    others = [row for row in document["forecasts"] if (row["class"], row["beside"]) not in measured]
    return {"corun": document["classes"], "corun_forecasts": others}


def shown(found: Mapping[str, Sequence[dict[str, Any]]]) -> list[Table]:
    """What `rows` returns, as tables for people."""
    columns = ("class", "beside", "slowdown", "low", "high")
    parts = (
        ("corun", (*columns, "pairs"), "measured side by side (quartiles)"),
        ("corun_forecasts", columns, "forecast side by side (90 % interval)"),
    )
    return [
        table(names, [[row[name] for name in names] for row in found[part]], title=title)
        for part, names, title in parts
        if found[part]
    ]


def learn(problem: Problem, traces: Sequence[Trace], settings: Settings) -> int:
    """Store the bad pairs that steps of the problem's graph show, and return how many are known now.

    Traces are compared with the problem's times. A file is written only where something changes.
    """
    position = {op_id: i for i, op_id in enumerate(problem.graph.ids)}
    ran = traces[0].ops if traces else ()
    lone_s = {at.id: problem.times.on(position[at.id], at.cores, at.threads) for at in ran}
    known = read_table(settings["corun"], problem.machine) or CoRunTable(problem.machine)
    updated = learned(known, observed_slowdowns(traces, problem.graph, lone_s))
    if updated != known:
        write_table(settings["corun"], updated)
    return len(updated.bad_pairs)
