"""/v1/models: the registered models, and the aliases and their moves."""

from __future__ import annotations

import logging
from typing import Any

from apiflask import APIBlueprint
from flask import Response

from threadcast.core.errors import ArtefactError, InvalidInput, NotFound, UnknownKind
from threadcast.models.registry import ModelRegistry
from threadcast.service.answer_formats import Alias, AliasTable, Model, Models
from threadcast.service.answers import Example, answer
from threadcast.service.auth import mover
from threadcast.service.context import context, reply
from threadcast.service.problems import Problem
from threadcast.service.schemas import AliasMove, Rollback

RESERVED = "aliases"
"""The name that no alias may have, since it is a path of its own."""

_log = logging.getLogger(__name__)

blueprint = APIBlueprint("models", __name__, url_prefix="/v1/models")

_REFERENCE = {
    "name": "reference", "in": "path", "required": True, "description": "name@number, or an alias",
    "schema": {"type": "string", "pattern": f"^(?!{RESERVED}$)[^/]+$"},
}  # fmt: skip


_ALIAS = {
    "name": "alias", "in": "path", "required": True, "description": "lower-case letters, digits, - and _",
    "schema": {"type": "string", "pattern": f"^(?!{RESERVED}$)[a-z][a-z0-9_-]{{0,63}}$"},
}  # fmt: skip
_UNTIL = "`threadcast train` has registered a model"


def _example(body: Any = None) -> Example:
    return Example(body, {"alias": "champion"}, status=404, until=_UNTIL)


@blueprint.get("")
@blueprint.doc(extensions=answer(Models, "Every version that is not damaged, by name and number."))
def listed() -> Response:
    """List the registered models and the aliases"""
    registry = context().models.registry
    manifests, damaged = registry.manifests()
    aliases, damaged_aliases = registry.all_aliases()
    damaged += [f"alias {alias}" for alias in damaged_aliases]
    if damaged:
        _log.warning("damaged and left out of the list of models: %s", ", ".join(damaged))
    return reply({"models": [manifest.to_json() for manifest in manifests], "aliases": aliases})


@blueprint.get("/<reference>")
@blueprint.doc(
    extensions=answer(
        Model,
        "What is known of the version, without loading it.",
        problems=(404, 422),
        parameters=[_REFERENCE],
        example=Example(path={"reference": "champion"}, status=404, until=_UNTIL),
    )
)
def one(reference: str) -> Response:
    """Describe a version, or the one that an alias stands for"""
    try:
        return reply(context().models.registry.manifest(reference).to_json())
    except NotFound as error:
        raise Problem(404, f"no model or alias {reference[:80]!r}", pointer="/reference", where="path") from error


@blueprint.get("/aliases")
@blueprint.doc(extensions=answer(AliasTable, "The version that each alias stands for."))
def aliases() -> Response:
    """List the aliases"""
    return reply({"aliases": context().models.registry.aliases()})


@blueprint.get("/aliases/<alias>")
@blueprint.doc(
    extensions=answer(
        Alias,
        "The alias with all its moves, oldest first.",
        problems=(404, 422),
        parameters=[_ALIAS],
        example=_example(),
    )
)
def alias_of(alias: str) -> Response:
    """Show what an alias stands for and has stood for"""
    return reply(_described(context().models.registry, alias))


@blueprint.put("/aliases/<alias>")
@blueprint.input(AliasMove, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        Alias,
        "The alias after the move.",
        problems=(404,),
        parameters=[_ALIAS],
        example=_example({"version": "joint_process@1"}),
    )
)
def move(asked: AliasMove, alias: str) -> Response:
    """Let an alias stand for a version from the next request on

    The version is loaded first: one that cannot be is refused and the alias stays where it was.
    """
    promote(alias, asked.version)
    return reply(_described(context().models.registry, alias))


@blueprint.post("/aliases/<alias>/rollback")
@blueprint.input(Rollback, arg_name="asked")
@blueprint.doc(
    extensions=answer(
        Alias, "The alias after going back.", problems=(404, 409, 422), parameters=[_ALIAS], example=_example({})
    )
)
def rollback(alias: str, asked: Rollback) -> Response:
    """Undo the last move of an alias that was not undone yet

    The version before it answers from the next request on. It is loaded first: where it cannot be, the alias stays.
    """
    go_back(alias)
    return reply(_described(context().models.registry, alias))


def promote(alias: str, version: str) -> None:
    """Let the alias stand for a version that can be loaded; a Problem where it cannot."""
    models = context().models
    if alias == RESERVED:
        raise Problem(422, f"no alias may be called {RESERVED!r}", pointer="/alias", where="path")
    try:
        models.get(version)
    except UnknownKind as error:
        raise Problem(422, str(error), pointer="/version") from error
    except (NotFound, ArtefactError) as error:
        missing = isinstance(error, NotFound)
        what = "is not registered" if missing else "is damaged or holds what must not be loaded"
        raise Problem(404 if missing else 422, f"{version[:80]} {what}", pointer="/version") from error
    try:
        models.registry.set_alias(alias, version, by=mover())
    except InvalidInput as error:
        raise Problem(422, str(error), pointer="/alias", where="path") from error
    models.follow(alias)


def go_back(alias: str) -> None:
    """Undo the alias's last move that was not undone yet; a Problem where there is none, or what was before cannot be
    loaded."""
    models = context().models
    before = _described(models.registry, alias)
    earlier = models.registry.before(alias)
    if earlier is None:
        raise Problem(409, f"alias {alias!r} has no earlier version to go back to", pointer="/alias", where="path")
    try:
        models.get(earlier)
    except (NotFound, ArtefactError) as error:
        raise Problem(409, f"{earlier}, which {alias!r} stood for before, cannot be loaded") from error
    try:
        models.registry.rollback(alias, by=mover(), expected=before["version"])
    except NotFound as error:
        raise Problem(409, f"{error}; look again", pointer="/alias", where="path") from error
    models.follow(alias)


def _described(registry: ModelRegistry, alias: str) -> dict[str, Any]:
    try:
        version, moves = registry.resolve(alias), registry.history(alias)
    except NotFound as error:
        raise Problem(404, f"there is no alias {alias[:80]!r}", pointer="/alias", where="path") from error
    return {"alias": alias, "version": version, "history": [move.to_json() for move in moves]}
