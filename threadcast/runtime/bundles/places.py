"""Where a machine's plans, measurements in steps and compiled code lie, and how a bundle's paths name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath

from threadcast.core import Machine
from threadcast.core.errors import BundleError, FormatError
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.core.settings import Settings
from threadcast.core.topology import read_machine
from threadcast.runtime.backends.way_store import NAME as WAYS
from threadcast.runtime.bundles.manifest import part_of
from threadcast.runtime.engine.native.library import NAME, library_folder
from threadcast.runtime.operators.library import fused_folder
from threadcast.runtime.plans.backend_history import NAME as BACKENDS
from threadcast.runtime.plans.backend_history import SCHEMA
from threadcast.runtime.plans.plan_store import read_backend, read_program, read_tried, stored_plan
from threadcast.runtime.plans.step_forecasts import store_of
from threadcast.runtime.plans.variant import MemoryFormat

_READERS: dict[str, Callable[[str], object]] = {
    ".layout": MemoryFormat, ".backend": read_backend, ".tried": read_tried, ".program": read_program,
}  # fmt: skip
"""What reads the text of a file of plans, by the end of its name."""


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

    def files(self) -> Mapping[str, Path]:
        """Return all files that a bundle can hold, by their paths in it."""
        found = [(f"{name}/{file.name}", file) for name, at in self._folders().items() for file in sorted(at.glob("*"))]
        return {path: file for path, file in found if part_of(path) and self._at(path) and file.is_file()}

    def target(self, path: str) -> Path:
        """Return the file that `path` of a bundle is on this machine; BundleError where this machine has none."""
        if (target := self._at(path)) is None:
            raise BundleError(
                f"{path} was compiled from other sources, by other flags or for another instruction set than this "
                f"process uses ({self.native.name}, {self.fused.name}); load the bundle without compiled code"
            )
        return target

    def _folders(self) -> dict[str, Path]:
        """The folders by their names in a bundle."""
        built = {f"{WAYS}/{folder.name}": folder for folder in (self.plans / WAYS).glob("[!.]*")}
        compiled = {f"compiled/{folder.name}": folder for folder in (self.native, self.fused)}
        return {"plans": self.plans, **compiled, **built}

    def _at(self, path: str) -> Path | None:
        if path.startswith(f"{WAYS}/"):  # found by processes with the same libraries only
            return self.plans / path
        folder, _, name = path.rpartition("/")
        found = self._folders().get(folder)
        return None if found is None or (found == self.native and name != f"{NAME}.so") else found / name


def check_plan_file(name: str, content: bytes) -> None:
    """Raise BundleError where optimised steps could not read this file: a plan, a memory format, a backend's gain,
    what was tried, what runs a program, or the history of backends."""
    try:
        if (read := _READERS.get(PurePath(name).suffix)) is not None:
            read(content.decode())
        elif name == BACKENDS:
            document = parse(content, what=name)
            check_schema(document, SCHEMA)
            member(document, "found", list)
        else:
            stored_plan(parse(content, what=name))
    except (FormatError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise BundleError(f"{name} is not a file that optimised steps can read: {error}") from error
