"""The page of one op: its measurements, the curves that models predict for it, and its inputs and attributes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flask import render_template, request

from threadcast.core import Machine
from threadcast.core.errors import NotFound
from threadcast.models.measured import MeasuredOp
from threadcast.service.context import context
from threadcast.service.dashboard.curves import chart_of, model_curve
from threadcast.service.dashboard.frame import blueprint, known_machines
from threadcast.service.dashboard.scores import newest
from threadcast.store.holding import what_holds
from threadcast.store.summaries import subject

LINES = 5
"""Most model versions that are drawn unless the query names others: more lines hide each other."""
MOST_LINES = 10


@blueprint.get("/ops/<key:key>")
def op_page(key: str) -> str:
    """The page of an op on one machine."""
    here = context()
    lines = here.store.browse.lines_of(key)
    if not lines:
        raise NotFound(f"no op with the key {key[:80]!r} was measured")
    wanted = request.args.get("machine", "") or next(iter(lines))
    if wanted not in lines:
        raise NotFound(f"{key} was not measured on a machine with the fingerprint {wanted[:80]!r}")
    machine = next(k.machine for k in known_machines() if k.machine.fingerprint == wanted)
    entry = _entry(key, machine)
    versions = here.models.registry.versions()
    shown = _chosen(versions, request.args.getlist("model"))
    all_given = request.args.get("given") == "all"
    by_model = [model_curve(here.models, version, entry, all_given=all_given) for version in shown]
    op = entry.op
    attributes = {name: json.dumps(value) for name, value in op.attributes.items()}
    return render_template(
        "dashboard/op.html", op=op, subject=subject(op), line=lines[wanted], lines=lines, machine=machine,
        entry=entry, chart=chart_of(entry, by_model), by_model=by_model, versions=versions, shown=shown,
        all_given=all_given, attributes=attributes, networks=here.store.browse.networks_with(key),
        default=here.models.default,
    )  # fmt: skip


def _entry(key: str, machine: Machine) -> MeasuredOp:
    here = context()
    changes = here.stored.changes(machine.fingerprint)
    measured = what_holds(here.store.measurements(machine=machine.fingerprint, keys=[key]), changes)
    if not measured:
        raise NotFound(f"{key} was measured only in cases that {machine.fingerprint} lacks; run `threadcast db check`")
    return MeasuredOp(next(iter(measured.values())).op, machine, dict(sorted(measured.items())))


def _chosen(versions: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Return the versions that the query names, else the default one and the newest ones of other kinds of model."""
    known = [version for version in asked if version in versions]
    if known:
        return known[:MOST_LINES]
    models = context().models
    first = [models.default] if models.default in versions else []
    first += [v for name, v in models.registry.aliases().items() if name == models.default]
    others = [version for version in newest(list(versions)).values() if version not in first]
    return [*first, *others][:LINES]
