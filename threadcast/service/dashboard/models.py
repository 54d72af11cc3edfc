"""The page of registered versions and of aliases with their history, and forms to move an alias."""

from __future__ import annotations

from flask import redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from threadcast.core.errors import ArtefactError, InvalidInput, NotFound
from threadcast.models.aliases import Move
from threadcast.service.auth import mover
from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.scores import score_of
from threadcast.service.models import RESERVED
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
        aliases=aliases, histories=histories, back={alias: _back(moves) for alias, moves in histories.items()},
        called=called, default=default, scores={m.version: score_of(m) for m in manifests}, versions=versions,
        chosen=chosen if chosen in versions else "", said=said if said in SAID else "",
        moved=moved if moved in aliases else "",
    )  # fmt: skip


@blueprint.post("/models/promote")
def promote() -> Response:
    """Let an alias stand for a version; a version that cannot be loaded is refused."""
    shelf = context().models
    alias, version = (request.form.get(name, "").strip() for name in ("alias", "version"))
    if alias == RESERVED:
        raise Problem(422, f"no alias may be called {RESERVED!r}")
    if "@" not in version:
        raise Problem(422, "choose a version, name@number")
    try:
        shelf.get(version)
    except ArtefactError as error:
        raise Problem(422, f"{version[:80]} is damaged or holds what must not be loaded") from error
    except NotFound as error:
        raise Problem(404, f"{version[:80]} is not registered") from error
    try:
        shelf.registry.set_alias(alias, version, by=mover())
    except NotFound as error:
        raise Problem(404, f"{version[:80]} is not registered") from error
    except InvalidInput as error:
        raise Problem(422, str(error)) from error
    return redirect(url_for("dashboard.models", said="promoted", alias=alias), 303)


@blueprint.post("/models/rollback")
def rollback() -> Response:
    """Undo an alias's last move."""
    alias = request.form.get("alias", "").strip()
    registry = context().models.registry
    if not registry.is_alias(alias):
        raise Problem(404, f"there is no alias {alias[:80]!r}")
    registry.rollback(alias, by=mover())
    return redirect(url_for("dashboard.models", said="rolled-back", alias=alias), 303)


def _back(moves: list[Move]) -> str:
    """The version that a rollback would return to, `moves` being the newest first; empty where there is none."""
    versions: list[str] = []
    for move in reversed(moves):
        if not move.rollback:
            versions.append(move.version)
        elif versions:
            versions.pop()
    return versions[-2] if len(versions) > 1 else ""
