"""One traced step by the plan that ran a caller's last step, and the page that shows it beside the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torch import Tensor

from threadcast.core import OpGraph, Plan, Trace
from threadcast.core.errors import ExecutionError
from threadcast.core.figures import duration
from threadcast.drawing.html_page import html_page
from threadcast.drawing.timeline_svg import kinds_of, painted, timeline
from threadcast.runtime.calls.fallback import Fallback, FirstCall
from threadcast.runtime.check.shadow import Ran, Shadowed
from threadcast.runtime.tuner.tuning import Tuning

STEPS = 3
"""Steps that are run; the last one's trace is shown. The first ones start the engine's threads and fill the caches."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """A plan, the graph that it is for, and when each operator of one step by it ran."""

    graph: OpGraph
    plan: Plan
    trace: Trace


def ran_by_plan(last: Tuning | Fallback | FirstCall | None) -> Ran:
    """Return the plan that ran a call which `last` ran; ExecutionError, which says what ran it, where none did."""
    if not isinstance(last, Tuning):
        why = last.reason if isinstance(last, Fallback) else "it must be called before"
        raise ExecutionError(f"no plan runs: {why}")
    ran = last.ran
    if ran is None:
        raise ExecutionError(f"no plan ran the last call, but: {last.report.runs}")
    return ran


def traced_step(shadowed: Shadowed, ran: Ran) -> TracedStep:
    """Run `STEPS` steps by the plan on the arguments of its capture, and restore all that they change.

    They run in an engine of their own. Model, optimizer, arguments, gradients and random state are afterwards as they
    were. ExecutionError where memory is too small for the copies that this takes.
    """
    captured = ran.captured
    reason = shadowed.too_large(captured.arguments, captured)
    if reason is not None:
        raise ExecutionError(f"the step cannot be traced: {reason}")
    start = shadowed.state(captured.arguments, captured)
    gradients = _gradients(shadowed)
    try:
        with ran.make_engine(captured) as engine:
            for _ in range(STEPS):
                _, trace = engine.run_traced(captured.bind())
            return TracedStep(captured.graph, engine.plan, trace)
    finally:
        start.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _gradients(shadowed: Shadowed) -> Sequence[tuple[Tensor, Tensor | None]]:
    """The gradients of all parameters of the model and of the optimizer, which may have those of other models too."""
    model, optimizer = shadowed.model, shadowed.optimizer
    parameters: list[Tensor] = [] if model is None else list(model.parameters())
    if optimizer is not None:
        parameters += (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [(parameter, parameter.grad) for parameter in parameters]


def timeline_page(title: str, step: TracedStep) -> str:
    """An HTML page without links to other files: the plan and what ran, one track for each core, on the same scale.

    While operators run one after the other to be measured there is no forecast of their times to draw.
    """
    plan, trace = step.plan, step.trace
    forecast = plan.policy != "sequential" or plan.lower_bound_s > 0  # `sequential` without seconds counts operators
    span_s = max(plan.makespan_s if forecast else 0.0, trace.makespan_s)
    kinds = kinds_of(step.graph)
    paints, legend = painted(trace, kinds)
    bound = f", no schedule is below {duration(plan.lower_bound_s)}" if plan.lower_bound_s else ""
    planned = [
        f"<h2>The plan: {duration(plan.makespan_s)} by {escape(plan.policy)}{bound}</h2>",
        timeline(plan, kinds, span_s=span_s, paints=paints),
    ]
    measured = ["<p class=note>Operators run one after the other, to be measured: there is no forecast yet.</p>"]
    return html_page(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            f"<p class=note>{len(step.graph):,} operators on {plan.cores} cores. An operator is drawn on each of its "
            "cores; pointing at it shows its name, threads and time.</p>",
            legend,
            *(planned if forecast else measured),
            f"<h2>What ran: {duration(trace.makespan_s)}</h2>",
            timeline(trace, kinds, span_s=span_s, paints=paints),
        ],
    )
