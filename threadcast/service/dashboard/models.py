"""The page of registered versions and of aliases with their history."""

from __future__ import annotations

from flask import render_template

from threadcast.service.context import context
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.scores import score_of


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
    return render_template(
        "dashboard/models.html", manifests=sorted(manifests, key=lambda m: m.created, reverse=True), damaged=damaged,
        aliases=aliases, histories=histories, called=called, default=default,
        scores={m.version: score_of(m) for m in manifests},
    )  # fmt: skip
