"""The model that a profile follows: a registered one, or one that learns from the store and from the profile itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from threadcast.core.errors import ArtefactError, NotFound
from threadcast.core.settings import Settings
from threadcast.store.holding import all_that_holds

if TYPE_CHECKING:
    from threadcast.core import Measurement
    from threadcast.models.following import FollowedModel
    from threadcast.models.registry import ModelRegistry
    from threadcast.store import Store

CHAMPION = "champion"

LEARNING_KIND = "joint_process"
"""The kind of model that is followed where none is named or registered: it learns from few measurements that lie
anywhere, also while they are made."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The proposer, the name of its model, and why the champion is not followed, where there is one; else empty."""

    proposer: FollowedModel
    name: str
    remark: str = ""


def followed_model(named: str | None, settings: Settings, store: Store, *, without: Collection[str]) -> Followed:
    """The model of this version, alias or kind as a proposer; None: the champion, else a model of `LEARNING_KIND`.

    A kind learns from the store's measurements of all ops but those with the keys in `without`, which the campaign has.
    NotFound for a name that is neither; ArtefactError where a named version cannot be loaded.
    """
    from threadcast.models import registry_of_kinds
    from threadcast.models.following import FollowedModel
    from threadcast.models.registry import ModelRegistry

    registry = ModelRegistry(settings["models"])
    every = store.measurements()
    known = [found for found in all_that_holds(every, store.changes) if found.op.key not in without]
    remark = ""
    if named is not None and named not in registry_of_kinds.names():
        try:
            return _registered(registry, named, known, stored=len(every))
        except NotFound as error:
            raise NotFound(f"{error}; kinds of models are {', '.join(registry_of_kinds.names())}") from error
    if named is None and registry.is_alias(CHAMPION):
        try:
            return _registered(registry, CHAMPION, known, stored=len(every))
        except ArtefactError as error:
            remark = f"the champion cannot be loaded, {LEARNING_KIND} is followed in its place: {error}"
    kind = named or LEARNING_KIND
    enough = {"enough": settings["profile.enough"]} if registry_of_kinds.takes(kind, "enough") else {}
    proposer = FollowedModel(registry_of_kinds.create(kind, **enough), known)
    return Followed(proposer, kind, remark)


def _registered(registry: ModelRegistry, name: str, known: list[Measurement], *, stored: int) -> Followed:
    """A registered model. It is fitted again as the campaign goes on if the store has what it learned from."""
    from threadcast.models.following import FollowedModel

    manifest = registry.manifest(name)
    fits = stored >= float(manifest.trained_on.get("measurements", float("inf")))
    return Followed(FollowedModel(registry.load(manifest.version), known, fits=fits), manifest.version)
