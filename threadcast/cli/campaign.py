"""`threadcast campaign`: time the ops of networks on all machines of a Dask cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.network_choice import NetworkChoice, network_options
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.cli.timed_cases import FixedCases, cases_option, either_cases_or_model, fixed_proposer
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.core import Op, OpGraph
    from threadcast.fleet.cluster import FleetProgress, FleetReport
    from threadcast.store import Store

SHOWN_FAILURES = 5


@click.command()
@network_options(metavar="NETWORK...", several=True)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Dask scheduler, as tcp://host:8786 [default: this machine alone]."
)
@click.option(
    "--wait-s",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="How long to wait for a machine while none is at work, in seconds.",
)
@cases_option
@click.option("--model", help="Model that decides what is timed, as for `threadcast profile`.")
@setting("profile.enough", "--enough")
@setting("profile.check", "--check")
@setting("profile.max_age_days", "--max-age-days")
@setting("cores", "--cores")
@setting("profile.budget_s", "--budget-s")
@setting("profile.tolerance", "--tolerance")
@click.option("--allow-shared", is_flag=True, help="Time on workers that have CPUs in common, too.")
@setting("store", "--store")
@setting("models", "--models")
@common
def command(
    output: Output,
    settings: Settings,
    networks: list[NetworkChoice],
    scheduler: str | None,
    wait_s: float,
    cases: FixedCases | None,
    model: str | None,
    allow_shared: bool,
) -> None:
    """Time the operations of each NETWORK, as `threadcast profile` names them, on every machine of a Dask cluster.

    Machines of one kind (cores, caches and frequencies are the same) share the operations; machines of different kinds
    measure all of them. Each machine that has a worker of the cluster is one. A worker that would measure on the CPUs
    of another one is left out, and so is one that has more than one thread (Dask's default), as these could do other
    work meanwhile unseen. Machines need threadcast[collect,models,fleet] in the version of this command, and nothing of
    the store: this command stores each measurement as soon as a machine has made it. The same command goes on where it
    was interrupted; as the model that decides knows more then, it may ask for a few more cases (not with --cases).

    A machine may be lost or come at any time. What it had not measured is given to another one of its kind; where there
    is none for --wait-s seconds, the rest is listed, and the exit status is 1.
    """
    from threadcast.fleet.parts import together
    from threadcast.store import Store

    either_cases_or_model(cases, model)
    graphs = _captured(output, networks)
    ops = together(graph.ops for graph in graphs.values())
    with Store.open(settings["store"]) as store:
        for name, graph in graphs.items():
            store.add_graph(name, graph)
        report = _measure(
            output, settings, store, ops, scheduler, wait_s=wait_s, cases=cases, model=model, allow_shared=allow_shared
        )
    document = _document(report, list(graphs), len(ops))
    _warn(output, report)
    output.result(document, *_shown(document))
    if report.unfinished:
        click.get_current_context().exit(1)


def _captured(output: Output, networks: list[NetworkChoice]) -> dict[str, OpGraph]:
    """The graphs of the networks by the names under which they are stored."""
    from threadcast.capture.workloads import capture_workload, default_mode, graph_name

    graphs = {}
    for network in networks:
        workload = network.load()
        mode = network.mode or default_mode(workload)
        graph = capture_workload(workload, mode, optimizer=network.optimizer).graph
        name = graph_name(workload, mode, optimizer=network.optimizer)
        graphs[name] = graph
        output.note(f"{name}: {len(graph)} ops, {len(graph.distinct_ops())} distinct")
    return graphs


def _measure(
    output: Output, settings: Settings, store: Store, ops: dict[Op, int], scheduler: str | None, *, wait_s: float,
    cases: FixedCases | None, model: str | None, allow_shared: bool,
) -> FleetReport:  # fmt: skip
    from threadcast.cli.followed_model import followed_model
    from threadcast.collector.proposers import Proposer
    from threadcast.fleet.cluster import FleetCampaign
    from threadcast.fleet.measuring import Manner
    from threadcast.fleet.schedulers import local_cluster

    manner = Manner(
        enough=settings["profile.enough"], check=settings["profile.check"],
        max_age_days=settings["profile.max_age_days"], mean_s=settings["profile.budget_s"],
        tolerance=settings["profile.tolerance"],
        alone=not allow_shared, cores=settings["cores"],
    )  # fmt: skip

    def proposer(of_part: tuple[Op, ...]) -> Proposer:
        if cases is not None:
            return fixed_proposer(cases)
        return followed_model(model, settings, store, without={op.key for op in of_part}).proposer

    proposer(tuple(ops))  # an error about the model comes now, not after machines were asked
    with local_cluster(scheduler) as address, output.progress("timing ops") as bar:

        def show(progress: FleetProgress) -> None:
            doing = f"timing ops on {progress.machines} machines, {progress.measured} cases measured"
            bar.update(progress.done, total=progress.total, doing=doing)

        with FleetCampaign(
            address, ops, store, manner, proposer, wait_s=wait_s, allow_shared=allow_shared, on_progress=show,
            on_event=output.note,
        ) as campaign:  # fmt: skip
            try:
                return campaign.run()
            except KeyboardInterrupt:
                output.note("what was measured is kept; the same command goes on from here")
                raise


def _document(report: FleetReport, graphs: list[str], ops: int) -> dict[str, Any]:
    return {
        "graphs": graphs, "ops": ops, "measured": report.measured, "reused": report.reused,
        "machines": [
            {
                "worker": address, "host": machine.host, "machine": machine.fingerprint or None,
                "parts": machine.parts, "measured": machine.measured, "reused": machine.reused,
                "state": "lost" if machine.lost else "left out" if machine.left_out else "measured",
                "why": machine.left_out or None,
            }
            for address, machine in report.machines.items()
        ],
        "failed": report.failed,
        "unfinished": [{"machine": part.kind, "ops": [op.key for op in part.ops]} for part in report.unfinished],
    }  # fmt: skip


def _shown(document: dict[str, Any]) -> list[Any]:
    columns = ("worker", "host", "machine", "state", "parts", "measured", "reused")
    rows = [[row[name] for name in columns] for row in document["machines"]]
    return [
        table(columns, rows),
        f"{document['ops']} ops of {len(document['graphs'])} networks: {document['measured']} cases measured, "
        f"{document['reused']} were stored already",
    ]


def _warn(output: Output, report: FleetReport) -> None:
    for machine in report.machines.values():
        if machine.left_out:
            output.warn(f"left out: {machine.left_out}")
    for kind, failed in report.failed.items():
        for key, why in list(failed.items())[:SHOWN_FAILURES]:
            output.warn(f"on {kind}, {key} failed: {why}")
        if len(failed) > SHOWN_FAILURES:
            output.warn(f"on {kind}, {len(failed) - SHOWN_FAILURES} more ops failed (--json lists them)")
    if report.unfinished:
        output.warn(
            f"{sum(len(part.ops) for part in report.unfinished)} ops are not measured, as no machine of their kind is "
            "left; the same command goes on from here"
        )
