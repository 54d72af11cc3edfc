"""The models that a service process answers with: each loaded once, shared by all threads."""

from __future__ import annotations

import threading
from pathlib import Path

from threadcast.models.base import PerformanceModel
from threadcast.models.registry import ModelRegistry


class ModelShelf:
    """Loaded models of one registry. A version never changes, so it is read once; aliases are looked up each time."""

    def __init__(self, root: Path, *, default: str) -> None:
        self.registry = ModelRegistry(root)
        self.default = default
        self._lock = threading.Lock()
        self._loaded: dict[str, PerformanceModel] = {}

    def get(self, reference: str | None = None) -> tuple[PerformanceModel, str]:
        """The model under this alias or "name@number" (None: the default), and its "name@number".

        NotFound for an unknown one, ArtefactError for one that must not be loaded.
        """
        named = reference or self.default
        version = named if "@" in named else self.registry.resolve(named)
        model = self._loaded.get(version)
        if model is None:
            with self._lock:  # two threads that ask for a new model load it once
                if version not in self._loaded:
                    self._loaded[version] = self.registry.load(version)
                model = self._loaded[version]
        return model, version
