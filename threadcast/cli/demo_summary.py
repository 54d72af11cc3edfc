"""The demo's results: summary.json, the tables on the terminal, and the facts at the top of its page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from threadcast.cli.demo_report import RunReport, page
from threadcast.cli.output import table
from threadcast.core import Machine
from threadcast.core.figures import duration

if TYPE_CHECKING:
    from rich.table import Table

    from threadcast.models.judgement import Row


@dataclass(frozen=True, slots=True)
class ModelsTable:
    """The comparison of models, each left to learn all networks but one. `rows`: the one that costs least first, none
    where `remark` says why."""

    rows: Sequence[Row]
    remark: str


def verdict(runs: Sequence[RunReport], machine: Machine, load: str) -> str:
    """One sentence: how long planned steps take beside PyTorch's default, of what, and how sure that is.

    Both are geometric means over the networks, of which none counts for more. `load` says how busy others were.
    """
    low, ratio, high = (
        1 / geometric_mean([getattr(run.verdict, name) for run in runs]) for name in ("high", "gain", "low")
    )
    doubt = "" if high < 1 else ", more than it" if low > 1 else ", not shown to be less or more"
    names = " and ".join(", ".join(run.name for run in runs).rsplit(", ", 1))
    interval = next((run.interval for run in runs if not run.disturbed), runs[0].interval)
    said = (
        f"lanned steps take {ratio:.2f} of PyTorch's default{doubt} ({interval} {low:.2f} to {high:.2f}; {names} on "
        f"{len(machine)} cores)"
    )
    if any(run.disturbed for run in runs):
        return f"{load[0].upper()}{load[1:]}: p{said}."
    return f"P{said}; {load}."


def summary(
    machine: Machine, observed: Collection[str], models: ModelsTable, version: str,
    runs: Sequence[RunReport],
) -> dict[str, Any]:  # fmt: skip
    """The content of summary.json. Step times and bounds are given by network, and at the top their sums.

    `observed` are the keys of the measured ops, `models` the evaluation of the models, `version` the one that served.
    """
    keys = {op.key for run in runs for op in run.graph.ops}
    each: dict[str, dict[str, Any]] = {
        run.name: {
            "ops": len(run.graph), "lower_bound_s": run.plan.lower_bound_s, "predicted_step_s": run.plan.makespan_s,
            "default_step_s": run.default_step_s, "planned_step_s": run.planned_step_s, "policy": run.plan.policy,
            "guard_keeps": run.verdict.kept, "why": f"the plan was {run.verdict.against('the default')}",
            "disturbed": run.disturbed, "interval": run.interval,
            "gain": {"median": run.verdict.gain, "low": run.verdict.low, "high": run.verdict.high},
        }
        for run in runs
    }  # fmt: skip
    summed = {
        name: sum(one[name] for one in each.values())
        for name in ("lower_bound_s", "predicted_step_s", "default_step_s", "planned_step_s")
    }
    measured = sum(key in observed for key in keys)
    return {
        "machine": machine.fingerprint,
        "cores": len(machine),
        "ops_measured": measured,
        "measured_share": measured / len(keys),
        "models": {
            row.model: {
                "accuracy": row.accuracy,
                "regret": row.regret_mean,
                "cost": row.cost,
                "worse_than_zero": row.worse_than_zero,
            }
            for row in models.rows
        },
        "model_served": version,
        "predictions_over_http": len(keys),
        **summed,
        "networks": each,
    }


def runs_table(runs: Sequence[RunReport]) -> Table:
    """The step times of the networks as a table."""
    columns = ("step", "default_s", "planned_s", "gain", "predicted", "keeps")
    lines = [
        [run.name, run.default_step_s, run.planned_step_s, str(run.verdict), run.predicted, run.verdict.kept]
        for run in runs
    ]
    return table(columns, lines, title="Steps, medians; gain with its interval")


def report_page(
    machine: Machine, runs: Sequence[RunReport], models: ModelsTable, document: Mapping[str, Any],
) -> str:  # fmt: skip
    """The demo's page, as HTML; `document` is the result of `summary`."""
    facts = (
        f"{document['ops_measured']} distinct operations measured, {document['measured_share']:.0%} of all; "
        + document["measuring"],
        f"{document['predictions_over_http']} curves fetched over HTTP from {document['model_served']}",
        f"all steps together: {duration(document['default_step_s'])} by default, "
        f"{duration(document['planned_step_s'])} planned"
        + ("" if any(r.forecast_disturbed for r in runs) else f", {duration(document['predicted_step_s'])} predicted"),
    )
    return page(
        verdict=document["verdict"], machine=f"{machine.name}, {len(machine)} cores", runs=runs, models=models.rows,
        remark=models.remark, facts=facts,
    )  # fmt: skip
