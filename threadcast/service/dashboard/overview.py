"""The front page: what is stored, the default model, and the ops that take long or are slower with all threads."""

from __future__ import annotations

from flask import render_template

from threadcast.core.errors import ArtefactError, NotFound
from threadcast.models.registry import Manifest
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint, chosen_machine, known_machines
from threadcast.service.dashboard.scores import score_of
from threadcast.store.browsing import OpFilter

KINDS, OPS = 8, 6
"""Most lines of the two lists, which fit side by side on a screen."""


@blueprint.get("/")
def overview() -> str:
    """The front page."""
    here = context()
    known = known_machines()
    machine = chosen_machine(known)
    kinds = here.store.browse.kinds(machine.fingerprint) if machine else []
    losing, total = (
        here.store.browse.ops(OpFilter(machine.fingerprint), sort="all_threads", limit=OPS) if machine else ([], 0)
    )
    served = _served()
    return render_template(
        "dashboard/overview.html", known=known, machine=machine, kinds=kinds[:KINDS], more_kinds=len(kinds) - KINDS,
        losing=[line for line in losing if line.all_threads > 1], total=total, served=served,
        score=score_of(served) if served else None, networks=here.store.browse.networks(),
        versions=here.models.registry.versions(), measured_ops=here.store.browse.measured_ops(),
    )  # fmt: skip


def _served() -> Manifest | None:
    models = context().models
    try:
        return models.registry.manifest(models.default)
    except (NotFound, ArtefactError):
        return None
