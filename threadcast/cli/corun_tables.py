"""Slow-downs of ops that run side by side, for commands: plans with them, and learns them from steps."""

from __future__ import annotations

from collections.abc import Sequence

from threadcast.cli.output import Output
from threadcast.core import Trace
from threadcast.core.corun import CoRunTable, read_table, write_table
from threadcast.core.settings import Settings
from threadcast.scheduler.interference.bad_pairs import learned, observed_slowdowns
from threadcast.scheduler.interference.pair_slowdown import PairInterference
from threadcast.scheduler.policies import Problem


def interference_of(
    problem: Problem, settings: Settings, output: Output, *, off: bool = False
) -> PairInterference | None:
    """The known slow-downs of the problem's machine; None where there are none, or they are turned `off`.

    Warns of files of other machines that cannot be read.
    """
    if off:
        return None

    def warn(error: Exception) -> None:
        output.warn(f"the slow-downs of another machine are passed over: {error}")

    known = read_table(settings["corun"], problem.machine, on_damaged=warn)
    return None if known is None else PairInterference(problem, known)


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
