"""The demo's results: its verdict, summary.json, and its page with step times and timelines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from threadcast.core import Machine, OpGraph, Plan, Trace
from threadcast.core.figures import duration
from threadcast.drawing.html_page import html_page, html_table
from threadcast.drawing.timeline_svg import kinds_of, painted, timeline

if TYPE_CHECKING:
    from threadcast.runtime.tuner.guard import Verdict


@dataclass(frozen=True, slots=True)
class RunReport:
    """One workload: its plan, the trace of its run, and the step times side by side."""

    name: str
    graph: OpGraph
    plan: Plan
    trace: Trace
    default_step_s: float
    planned_step_s: float
    verdict: Verdict
    """The gain of the plan, with its interval, and which of both the guard keeps."""
    disturbed: bool = False
    """Whether others used the CPUs in the steps that count."""
    interval: str = "95 % interval"
    forecast_disturbed: bool = False
    """Whether others used the CPUs while most of its ops were measured."""
    rough: bool = False
    """Whether most of its curves are extrapolated: by the shipped prior, or by times that no longer hold."""

    @property
    def why_default(self) -> str:
        """Why the guard keeps the default, where it does; else empty."""
        kept = self.verdict.kept == "default"
        return f"{self.name} keeps the default: the plan was {self.verdict.against('it')}." if kept else ""

    @property
    def predicted(self) -> str:
        """The predicted time of a step."""
        if self.forecast_disturbed:
            return "disturbed"
        return duration(self.plan.makespan_s) + (" (rough)" if self.rough else "")

    def row(self) -> list[str]:
        """The cells of `STEP_COLUMNS`."""
        bound = "disturbed" if self.forecast_disturbed else duration(self.plan.lower_bound_s)
        times = [duration(self.default_step_s), duration(self.planned_step_s), str(self.verdict)]
        return [self.name, f"{len(self.graph):,}", *times, self.predicted, bound, self.verdict.kept]


STEP_COLUMNS = ("network", "ops", "default", "planned", "gain, interval", "predicted", "lower bound", "keeps")


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
    machine: Machine, observed: Collection[str], version: str, runs: Sequence[RunReport]
) -> dict[str, Any]:  # fmt: skip
    """The content of summary.json. Step times and bounds are given by network, and at the top their sums.

    `observed` are the keys of the measured ops, `version` the model that served.
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
        "machine": machine.fingerprint, "cores": len(machine), "ops_measured": measured,
        "measured_share": measured / len(keys), "model_served": version,
        "predictions_over_http": len(keys), **summed, "networks": each,
    }  # fmt: skip


def page(machine: Machine, runs: Sequence[RunReport], document: Mapping[str, Any]) -> str:
    """The results as one HTML file without links to other files; `document` is the result of `summary`."""
    body = [
        "<h1>threadcast: what the demo measured</h1>",
        f"<p><strong>{escape(document['verdict'])}</strong></p>",
        f"<p class=note>{escape(machine.name)}, {len(machine)} cores. Times are medians of interleaved steps. "
        f"{escape(document['measuring'].capitalize())}.</p>",
        html_table(STEP_COLUMNS, [run.row() for run in runs]),
        "<p class=note>Default: eager PyTorch with all threads. Lower bound: no schedule of these ops, each alone "
        f"as fast as it was measured, is shorter. {escape(' '.join(run.why_default for run in runs))}</p>",
    ]
    for run in runs:
        kinds = kinds_of(run.graph)
        paints, legend = painted(run.plan, kinds)
        span_s = max(run.plan.makespan_s, run.trace.makespan_s)
        body += [
            f"<h2>{escape(run.name)}</h2>", legend,
            f"<h3>Predicted: {duration(run.plan.makespan_s)} by {escape(run.plan.policy)}</h3>",
            timeline(run.plan, kinds, span_s=span_s, paints=paints),
            f"<h3>One traced step: {duration(run.trace.makespan_s)}</h3>",
            timeline(run.trace, kinds, span_s=span_s, paints=paints),
        ]  # fmt: skip
    return html_page("threadcast demo", body)
