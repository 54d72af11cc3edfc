"""Where a machine's plans, measurements in steps and compiled code lie, and how a bundle's paths name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from threadcast.core import Machine
from threadcast.core.settings import Settings
from threadcast.core.topology import read_machine
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.engine.native.library import NAME, library_folder
from threadcast.runtime.operators.library import fused_folder
from threadcast.runtime.plans.step_forecasts import store_of


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of plans and compiled code, and the URL of the store with what optimised steps have measured.

    `store` is None where `engine.feedback` is off: optimised steps then neither read nor write a store. `native` and
    `fused` are the folders of the native engine and of fused operators that this process itself would use: their names
    depend on sources, compiler flags, PyTorch and Python.
    """

    machine: Machine
    plans: Path
    store: str | None
    native: Path
    fused: Path

    @classmethod
    def of(cls, settings: Settings) -> Places:
        """Return those that optimised steps of this machine use under these settings."""
        cache: Path = settings["engine.cache"]
        native, fused = cache / library_folder().name, cache / fused_folder().name
        return cls(read_machine(), settings["engine.plans"], store_of(settings), native, fused)

    def folders(self) -> Mapping[str, Path]:
        """Return the folders of plans and compiled code by their names in a bundle."""
        ways = self.plans / WAYS
        built = [folder for folder in ways.iterdir() if not folder.name.startswith(".")] if ways.is_dir() else []
        return {
            "plans": self.plans, **{f"compiled/{folder.name}": folder for folder in (self.native, self.fused)},
            **{f"{WAYS}/{folder.name}": folder for folder in built},
        }  # fmt: skip

    def target(self, path: str) -> Path | None:
        """Return the file that `path` of a bundle is on this machine; None where this machine has no use for it."""
        folder, _, name = path.rpartition("/")
        if folder.startswith(f"{WAYS}/"):  # found by processes with the same libraries only
            return self.plans / path
        found = self.folders().get(folder)
        if found is None or (found == self.native and name != f"{NAME}.so"):
            return None
        return found / name
