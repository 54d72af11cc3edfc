"""The loaded models of a service process, shared by its threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from threadcast.core.errors import ArtefactError, NotFound, ThreadcastError
from threadcast.models.base import PerformanceModel
from threadcast.models.joint_process import JointProcess
from threadcast.models.registry import ModelRegistry
from threadcast.models.untrained import VERSION
from threadcast.prediction.lru_cache import LruCache
from threadcast.service.expiring_value import ExpiringValue

PRIOR = JointProcess(prior=True)
"""Forecasts what no registered model can: by the shipped prior, and by what is stored of a machine."""

MOST_CASES = 600
"""Most cases of a machine of which `PRIOR` is asked: of 10 ops it takes 0.06 s for 263 cases, 1 s and 8 MB an op for
1,031 (2-core AMD EPYC virtual machine)."""

MOST_LOADED = 8
"""Number of versions in memory besides those that aliases stand for: those that requests named themselves."""

_log = logging.getLogger(__name__)


class _Standing(NamedTuple):
    """The model that an alias stands for in this process; `moves` is the alias's number of moves when it was loaded."""

    model: PerformanceModel
    version: str
    moves: int


class ModelShelf:
    """Loaded models of one registry. Safe to use from threads.

    A version never changes, so it is loaded once. Aliases are checked every few milliseconds. When an alias has moved,
    its new version is loaded in the background, and requests use the old one until then. If the new version cannot be
    loaded, the old one stays in use and `failed` is called with the alias; else `moved` is called with the alias and
    the version. With `untrained` `PRIOR` is used as long as nothing is registered as the default.
    """

    def __init__(
        self,
        root: Path,
        *,
        default: str,
        untrained: bool = False,
        failed: Callable[[str], None] = lambda alias: None,
        moved: Callable[[str, str], None] = lambda alias, version: None,
    ) -> None:
        self.registry = ModelRegistry(root)
        self.default = default
        self._untrained = untrained
        self._failed, self._moved = failed, moved
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._loaded: LruCache[str, PerformanceModel] = LruCache(MOST_LOADED)
        self._standing: dict[str, _Standing] = {}
        self._moves: dict[str, ExpiringValue[int]] = {}
        self._attempted: dict[str, int] = {}
        """By alias, its number of moves when loading its version was last tried."""

    def get(self, reference: str | None = None) -> tuple[PerformanceModel, str]:
        """Return the model of an alias or "name@number" (None: the default), and its "name@number".

        NotFound for an unknown one, ArtefactError for one that must not be loaded.
        """
        named = reference or self.default
        if "@" in named:
            return self._load(named, lambda model: self._loaded.put(named, model)), named
        standing = self._standing.get(named)
        if standing is None:
            if reference is None and self._untrained and not self.registry.is_alias(named):
                return PRIOR, VERSION
            return self.follow(named)
        moves = self._moves[named]()
        if moves != standing.moves:
            self._follow_beside(named, moves)
        return standing.model, standing.version

    def follow(self, alias: str) -> tuple[PerformanceModel, str]:
        """Load the version that the alias stands for in the registry and use it from now on.

        Returns and raises as `get`.
        """
        while True:
            moves = self.registry.moves(alias)
            version = self.registry.resolve(alias)
            try:
                model = self._load(version, partial(self._read, alias, version, moves))
            except (NotFound, ArtefactError):
                if self.registry.moves(alias) == moves:
                    raise
                continue  # the alias has left this version, which may be removed since
            self._stand(alias, _Standing(model, version, moves))
            return model, version

    def _follow_beside(self, alias: str, moves: int) -> None:
        with self._lock:
            if self._attempted.get(alias) == moves:
                return
            self._attempted[alias] = moves
        threading.Thread(target=self._try, args=(alias,), name=f"follow {alias}", daemon=True).start()

    def _try(self, alias: str) -> None:
        try:
            self.follow(alias)
        except (ThreadcastError, OSError) as error:
            self._failed(alias)
            _log.error("%s stays what it was, since what it now stands for cannot be loaded: %s", alias, error)

    def _read(self, alias: str, version: str, moves: int, model: PerformanceModel) -> None:
        """Use the model that was just read from disk for an alias, and no other one of this version."""
        self._stand(alias, _Standing(model, version, moves))
        self._loaded.drop(lambda loaded: loaded == version)

    def _stand(self, alias: str, standing: _Standing) -> None:
        with self._lock:
            before = self._standing.get(alias)
            if before is not None and before.moves > standing.moves:
                return
            self._moves[alias] = ExpiringValue(partial(self.registry.moves, alias))
            self._standing[alias] = standing
        if before is None or before.version != standing.version:
            self._moved(alias, standing.version)

    def _load(self, version: str, keep: Callable[[PerformanceModel], None]) -> PerformanceModel:
        """The model of a version, from memory where it is there.

        One that was read from disk is given to `keep`, after which `_in_memory` must find it: a thread that waited for
        it does not read the disk, where the version may be removed by then.
        """
        model = self._in_memory(version)
        if model is not None:
            return model
        with self._loading:  # two threads that ask for a new model load it once
            model = self._in_memory(version)
            if model is None:
                model = self.registry.load(version)
                keep(model)
        return model

    def _in_memory(self, version: str) -> PerformanceModel | None:
        standing = next((one.model for one in list(self._standing.values()) if one.version == version), None)
        return self._loaded.get(version) if standing is None else standing
