"""The page of registered versions and of aliases with their history, and forms to move an alias."""

from __future__ import annotations

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.scores import score_of
from threadcast.service.models import go_back, promote
from threadcast.service.problems import Problem

SAID = ("promoted", "rolled-back")


@blueprint.get("/models")
def models() -> str:
    """The page with every version and alias."""
    registry, default = context().models.registry, context().models.default
    manifests, damaged = registry.manifests()
    aliases, damaged_aliases = registry.all_aliases()
    damaged += [f"alias {alias}" for alias in damaged_aliases]
    histories = {alias: registry.history(alias)[::-1] for alias in aliases}
    called: dict[str, list[str]] = {}
    for alias, version in aliases.items():
        called.setdefault(version, []).append(alias)
    said = request.args.get("said", "")
    moved = request.args.get("alias", "")
    chosen = request.args.get("promote", "")
    versions = [manifest.version for manifest in manifests]
    return render_template(
        "dashboard/models.html", manifests=sorted(manifests, key=lambda m: m.created, reverse=True), damaged=damaged,
        aliases=aliases, histories=histories, back={alias: registry.before(alias) or "" for alias in aliases},
        called=called, default=default, scores={m.version: score_of(m) for m in manifests}, versions=versions,
        chosen=chosen if chosen in versions else "", said=said if said in SAID else "",
        moved=moved if moved in aliases else "",
    )  # fmt: skip


@blueprint.post("/models/promote")
def promote_form() -> Response:
    """Let an alias stand for a version; a version that cannot be loaded is refused."""
    alias, version = (request.form.get(name, "").strip() for name in ("alias", "version"))
    if "@" not in version:
        raise Problem(422, "choose a version, name@number")
    promote(alias, version)
    return redirect(url_for("dashboard.models", said="promoted", alias=alias), 303)


@blueprint.post("/models/rollback")
def rollback_form() -> Response:
    """Undo an alias's last move."""
    alias = request.form.get("alias", "").strip()
    go_back(alias)
    return redirect(url_for("dashboard.models", said="rolled-back", alias=alias), 303)
