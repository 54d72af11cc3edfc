"""The option `--counters` of commands that measure ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.output import Output
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.collector.campaign_report import CampaignReport
    from threadcast.collector.counters.op_counters import CounterChoice, OpCounters
    from threadcast.core import Machine, OpGraph

SHOWN_FAILURES = 5

counters_option = click.option(
    "--counters", "counter_choice", type=click.Choice(["perf", "cachegrind", "none"]),
    help="What to count: hardware and software events around each run; those of a simulation of caches, by valgrind, "
    "once an op; or nothing. Measurements without what is asked for are made again. [default: perf as far as this "
    "machine allows it]",
)  # fmt: skip


def chosen_counters(
    output: Output, settings: Settings, choice: CounterChoice | None, graph: OpGraph, machine: Machine
) -> OpCounters:
    """What to count while the graph's ops are measured; simulates them where that was chosen.

    CounterUnavailable where this machine cannot count what was asked for.
    """
    from threadcast.collector.counters.availability import list_unavailable
    from threadcast.collector.counters.op_counters import OpCounters, perf_counters

    if choice == "none":
        return OpCounters()
    if choice == "cachegrind":
        return _simulated(output, settings, graph, machine)
    counters = perf_counters(required=choice == "perf")
    if choice == "perf" and counters.plan and (unavailable := counters.plan.unavailable):
        output.warn(f"not counted: {list_unavailable(unavailable)}")
    return counters


def counters_read(report: CampaignReport) -> dict[str, Any]:
    """The names of the counters that were read."""
    found = [measurement for known in report.observed.values() for measurement in known]
    return {"read": sorted({name for m in found for name in m.samples[0].counters if m.counter(name) is not None})}


def _simulated(output: Output, settings: Settings, graph: OpGraph, machine: Machine) -> OpCounters:
    from threadcast.collector.counters.cachegrind import find_valgrind
    from threadcast.collector.counters.op_counters import cachegrind_counters
    from threadcast.store import Store

    find_valgrind()
    ops = graph.distinct_ops()
    with Store.open(settings["store"]) as store:
        known = store.measurements(machine=machine.fingerprint, keys=list(ops))
    with output.progress("simulating ops") as bar:
        counters = cachegrind_counters(
            ops.values(), machine, known=known, on_progress=lambda done, total: bar.update(done, total=total)
        )
    for key, reason in list(counters.failed.items())[:SHOWN_FAILURES]:
        output.warn(f"{key} has no simulated counts: {reason}")
    return counters
