"""`threadcast models`: registered models and their aliases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.model_table import percent
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.cli.user import user
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.models.registry import Manifest, ModelRegistry


@click.group()
def command() -> None:
    """List, show, promote and remove registered models."""


@command.command("list")
@setting("models", "--models")
@common
def list_(output: Output, settings: Settings) -> None:
    """List every version with its aliases and its scores when it was trained."""
    registry = _registry(settings)
    aliases, damaged_aliases = registry.all_aliases()
    rows: list[dict[str, Any]] = []
    cells = []
    manifests, damaged = registry.manifests()
    for version in damaged:
        output.warn(f"{version} is damaged and left out; `threadcast models show {version}` says why")
    for alias, reason in damaged_aliases.items():
        output.warn(f"alias {alias} is left out: {reason}")
    for manifest in manifests:
        version = manifest.version
        score = _score(manifest)
        called = [alias for alias, stands_for in aliases.items() if stands_for == version]
        row = {
            "version": version,
            "aliases": called,
            "created": manifest.created,
            "ops": manifest.trained_on.get("ops"),
        }
        rows.append({**row, **{name: score.get(name) for name in ("samples", "accuracy", "regret_mean")}})
        accuracy, regret = percent(score.get("accuracy")), percent(score.get("regret_mean"))
        cells.append([version, ", ".join(called), manifest.created[:10], row["ops"], accuracy, regret])
    columns = ("version", "aliases", "created", "ops", "acc %", "regret %")
    shown = table(columns, cells) if rows else f"no models in {registry.root}"
    output.result({"models": rows, "aliases": aliases}, shown)


@command.command()
@click.argument("model")
@setting("models", "--models")
@common
def show(output: Output, settings: Settings, model: str) -> None:
    """Show what is stored about MODEL, a version (name@number) or an alias."""
    registry = _registry(settings)
    manifest = registry.manifest(model)
    moves = [move.to_json() for move in registry.history(model)]
    document = {**manifest.to_json(), "alias_moves": moves}
    facts = {
        "version": manifest.version, "created": manifest.created, **manifest.trained_on, **_score(manifest),
        "bytes": sum(size for _, size in manifest.files.values()),
    }  # fmt: skip
    lines = [[name, ", ".join(map(str, fact)) if isinstance(fact, list) else fact] for name, fact in facts.items()]
    shown: list[Any] = [table(("what", "value"), [line for line in lines if line[1] not in (None, "")])]
    if moves:
        moved = [(m["time"], m["version"], "rolled back" if m["rollback"] else "set", m["by"]) for m in moves]
        shown.append(table(("time", "version", "how", "by"), moved, title=f"moves of {model}"))
    output.result(document, *shown)


@command.command()
@click.argument("alias")
@click.argument("model")
@setting("models", "--models")
@common
def alias(output: Output, settings: Settings, alias: str, model: str) -> None:
    """Let ALIAS stand for MODEL, a version or another alias, from now on."""
    registry = _registry(settings)
    registry.set_alias(alias, model, by=user())
    version = registry.resolve(alias)
    output.result({"alias": alias, "version": version}, f"{alias} is {version}")


@command.command()
@click.argument("alias")
@setting("models", "--models")
@common
def rollback(output: Output, settings: Settings, alias: str) -> None:
    """Undo the last move of ALIAS; repeated, the move before it."""
    version = _registry(settings).rollback(alias, by=user())
    output.result({"alias": alias, "version": version}, f"{alias} is {version} again")


@command.command()
@click.option("--keep", type=click.IntRange(min=1), default=5, show_default=True, help="Versions of each name to keep.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@setting("models", "--models")
@common
def prune(output: Output, settings: Settings, keep: int, dry_run: bool) -> None:
    """Remove old versions.

    Those that an alias stands for or can be rolled back to stay, whatever their age, as do the one that the setting
    service.model names, and damaged ones.
    """
    registry = _registry(settings)
    old = registry.prunable(keep=keep, also=[settings["service.model"]])  # a name@version, or an alias
    manifests, damaged = registry.manifests()
    for version in damaged:
        output.warn(f"{version} is damaged and stays; `threadcast models show {version}` says why")
    sizes = {manifest.version: sum(size for _, size in manifest.files.values()) for manifest in manifests}
    chosen = [version for version in old if version in sizes]
    removed = 0
    for version in chosen:
        removed += sizes[version]
        if not dry_run:
            registry.remove(version)
    left = len(registry.versions()) - (len(chosen) if dry_run else 0)
    said = (
        f"{'would remove' if dry_run else 'removed'} {len(chosen)} of {len(chosen) + left} versions, {removed:,} bytes"
    )
    document = {"versions": chosen, "bytes": removed, "dry_run": dry_run, "left": left}
    output.result(document, *chosen, said)


def _registry(settings: Settings) -> ModelRegistry:
    from threadcast.models.registry import ModelRegistry

    return ModelRegistry(settings["models"])


def _score(manifest: Manifest) -> dict[str, Any]:
    """The first score in the version's manifest; empty where there is none."""
    scores = [score for score in manifest.metrics.values() if isinstance(score, dict)]
    return scores[0] if scores else {}
