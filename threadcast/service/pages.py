"""Pages for people: what is known here, and the reference of the API. No script, nothing from elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apiflask import APIBlueprint
from flask import Response, current_app, render_template, request

from threadcast.core import Measurement
from threadcast.service.context import context

OPS_SHOWN = 200
"""Ops in the table of the front page."""

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""On every answer: a page may load our style sheet and nothing else."""

blueprint = APIBlueprint("pages", __name__, enable_openapi=False)


@dataclass(frozen=True, slots=True)
class _OpLine:
    """A row of the table of ops."""

    key: str
    kind: str
    cases: int
    samples: int
    best: str
    best_s: float


def secure(response: Response) -> Response:
    """Set the headers that keep a browser from doing more than was meant."""
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response


@blueprint.get("/")
def front() -> str:
    """What this service knows: machines, models, and the ops measured on one machine."""
    here = context()
    machines = here.store.machines()
    chosen = next(
        (m for m in machines if m.fingerprint == request.args.get("machine")), machines[0] if machines else None
    )
    lines = _op_lines(here.store.measurements(machine=chosen.fingerprint)) if chosen else []
    return render_template(
        "front.html", machines=machines, chosen=chosen, lines=lines[:OPS_SHOWN], ops=len(lines),
        models=here.models.registry.versions(), aliases=here.models.registry.aliases(), graphs=here.store.graphs(),
    )  # fmt: skip


def _op_lines(measured: Iterable[Measurement]) -> list[_OpLine]:
    """Ops by their shortest median, the most time-consuming first."""
    by_op: dict[str, list[Measurement]] = {}
    for m in measured:
        by_op.setdefault(m.op.key, []).append(m)
    lines = []
    for key, found in by_op.items():
        by_case: dict[Any, list[float]] = {}
        for m in found:
            by_case.setdefault(m.case, []).extend(sample.seconds for sample in m.samples)
        medians = {case: statistics.median(seconds) for case, seconds in by_case.items()}
        best = min(medians, key=lambda case: (medians[case], case))
        samples = sum(map(len, by_case.values()))
        lines.append(_OpLine(key, found[0].op.kind, len(by_case), samples, str(best), medians[best]))
    return sorted(lines, key=lambda line: -line.best_s)


@blueprint.get("/docs")
def docs() -> str:
    """The API's reference, rendered from the OpenAPI description."""
    spec = current_app._get_spec()  # type: ignore[attr-defined]  # what APIFlask's own pages call
    operations = [
        (method.upper(), path, operation)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict) and "responses" in operation
    ]
    return render_template("docs.html", spec=spec, operations=operations, schemas=spec["components"]["schemas"])


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with three significant digits."""
    return f"{seconds * 1e3:.3g}"
