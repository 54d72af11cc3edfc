"""Registered models: numbered versions that never change, and aliases that move between them.

    root/
      versions/<name>@<number>/manifest.json, and the files it lists with their sha256
      aliases/<alias>/<number>.json     each move of the alias; the last one counts
      staging/                          what is being written
      needed.lock                       held while an alias is set or a version is removed

A version is written in the staging directory and appears by one rename; a move appears by one hard link. Both fail
where the number is taken, and the writer takes the next one: readers need no lock, and never see a half-written version
or move. Only setting an alias and removing a version keep each other out: else an alias could be set to a version that
is being removed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from threadcast import __version__
from threadcast.core.errors import ArtefactError, InvalidInput, NotFound, UnknownKind
from threadcast.core.json_reading import check_schema, member, number, parse
from threadcast.models import registry_of_kinds, stored_files
from threadcast.models.aliases import Aliases
from threadcast.models.artefacts import json_bytes, reading
from threadcast.models.base import PerformanceModel

SCHEMA = "threadcast.model/1"
T = TypeVar("T")

MAX_MANIFEST_BYTES = 2**20
MAX_MODEL_BYTES = 2**31
"""Largest manifest, and largest sum of a version's files, that are read; far above any model seen (40 MB)."""

_VERSION = re.compile(r"([a-z][a-z0-9_]{0,63})@([1-9][0-9]{0,8})")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MANIFEST = "manifest.json"
_LOCK = "needed.lock"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a version that is stored beside its files.

    `version` is "name@number", `model` the name of its kind, `created` the time in ISO 8601. `trained_on` and `metrics`
    are the JSON that was given to `ModelRegistry.save`; `libraries` are the versions of the libraries that wrote the
    files. `files` maps each file's name to its sha256 and its size in bytes.
    """

    version: str
    model: str
    created: str
    trained_on: Mapping[str, Any]
    metrics: Mapping[str, Any]
    files: Mapping[str, tuple[str, int]]
    libraries: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.model/1`."""
        files = {name: {"sha256": digest, "bytes": size} for name, (digest, size) in self.files.items()}
        return {
            "schema": SCHEMA, "version": self.version, "model": self.model, "created": self.created,
            "trained_on": dict(self.trained_on), "metrics": dict(self.metrics), "libraries": dict(self.libraries),
            "files": files,
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> Manifest:
        """Read what `to_json` writes; FormatError on anything else, also on a file name that is a path."""
        check_schema(document, SCHEMA)
        files = {}
        for name, entry in member(document, "files", dict).items():
            if not _is_file_name(name):
                raise ArtefactError(f"the manifest lists the file {name!r}: names are letters, digits, _, - and .")
            size = number(entry, "bytes", pointer=f"/files/{name}", minimum=0.0)
            files[name] = (member(entry, "sha256", str, pointer=f"/files/{name}"), int(size))
        version, model, created = (member(document, key, str) for key in ("version", "model", "created"))
        trained_on, metrics, libraries = (member(document, key, dict) for key in ("trained_on", "metrics", "libraries"))
        return cls(version, model, created, trained_on, metrics, files, libraries)


class ModelRegistry(Aliases):
    """The models registered below the directory `root`, which is created when the first one is saved.

    Safe for many readers and writers at once, in threads and processes, on one file system. Loading never unpickles: it
    checks that the files are those of the manifest, byte for byte, and passes them to a new model of the kind.
    InvalidInput where `root` is a file.
    """

    def __init__(self, root: Path, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__(Path(root), now)
        if self.root.exists() and not self.root.is_dir():
            raise InvalidInput(
                f"{self.root} is a file; models are stored in a folder, which is created where there is none"
            )

    def save(self, model: PerformanceModel, *, trained_on: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
        """Register a fitted model as the next version of its name and return "name@number".

        `trained_on` and `metrics` are JSON that says what the model learned from and how good it is. Raises
        InvalidInput where they are not JSON, or where `registry_of_kinds` cannot create a model of that name to load it
        again.
        """
        if model.name not in registry_of_kinds.names():
            raise InvalidInput(
                f"no kind of model is named {model.name!r}; register it first, or it could not be loaded"
            )
        files = model.to_files()
        odd = [name for name in files if not _is_file_name(name)]
        if odd:
            raise InvalidInput(f"{model.name} names its files {', '.join(odd)}: names are letters, digits, _, - and .")
        listed = {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()}
        number = max((n for name, n in self._numbers() if name == model.name), default=0) + 1
        with stored_files.staged(self.root) as staged:
            for name, data in files.items():
                stored_files.write(staged / name, data)
            while True:
                version = f"{model.name}@{number}"
                created = self._now().isoformat(timespec="seconds")
                manifest = Manifest(version, model.name, created, trained_on, metrics, listed, _libraries())
                stored_files.write(staged / _MANIFEST, _json(manifest.to_json(), what="trained_on and metrics"))
                target = self.root / "versions" / version
                target.parent.mkdir(exist_ok=True)
                stored_files.sync(self.root)
                stored_files.make_readable(staged)
                stored_files.sync(staged)
                try:
                    os.rename(staged, target)  # fails on a directory that holds anything, as every version does
                except OSError:
                    if not target.exists():
                        raise
                    number += 1
                    continue
                stored_files.sync(target.parent)
                return version

    def load(self, version: str) -> PerformanceModel:
        """The model of "name@number" or of an alias.

        NotFound where there is none; ArtefactError, with nothing executed, where a file is missing, added, changed,
        cut short, no plain file, or not of a kind that may be loaded: UnknownKind for one that this version of
        threadcast does not have.
        """
        return self._reading(version, self._load)

    def _load(self, version: str) -> PerformanceModel:
        manifest = self._manifest(version)
        directory = self.root / "versions" / manifest.version
        present = {entry.name for entry in directory.iterdir()} - {_MANIFEST}
        if present != set(manifest.files):
            odd = ", ".join(sorted(present.symmetric_difference(manifest.files)))
            raise ArtefactError(f"{manifest.version} does not have the files of its manifest; missing or added: {odd}")
        if sum(size for _, size in manifest.files.values()) > MAX_MODEL_BYTES:
            raise ArtefactError(f"{manifest.version} is larger than {MAX_MODEL_BYTES} bytes")
        if manifest.model not in registry_of_kinds.names():
            raise UnknownKind(
                f"{manifest.version} is of kind {manifest.model!r}, which threadcast {__version__} does not have; let "
                "its alias stand for another version: `threadcast models rollback ALIAS`, or `threadcast models alias "
                "ALIAS VERSION`; `threadcast train` makes new ones"
            )
        files = {}
        for name, (digest, size) in manifest.files.items():
            files[name] = stored_files.read(directory / name, limit=size)
            if hashlib.sha256(files[name]).hexdigest() != digest:
                raise ArtefactError(f"{manifest.version}: {name} is not the file that was registered (sha256 differs)")
        with reading(manifest.version):
            return registry_of_kinds.create(manifest.model).from_files(files)

    def manifest(self, version: str) -> Manifest:
        """The manifest of "name@number" or of an alias's version; NotFound where there is none, ArtefactError where it
        is damaged."""
        return self._reading(version, self._manifest)

    def _reading(self, version: str, read: Callable[[str], T]) -> T:
        """What `read` returns for "name@number"; again where that was removed meanwhile."""
        while True:
            exact = version if _VERSION.fullmatch(version) else self.resolve(version)
            try:
                return read(exact)
            except (OSError, ArtefactError) as error:
                if not (self.root / "versions" / exact).is_dir():
                    continue
                if isinstance(error, ArtefactError):
                    raise
                raise ArtefactError(f"{exact} cannot be read: {error.strerror}") from error

    def _manifest(self, exact: str) -> Manifest:
        directory = self.root / "versions" / exact
        if not directory.is_dir():
            raise NotFound(f"no model {exact}; registered: {', '.join(self.versions()) or 'none'}")
        if directory.is_symlink():
            raise ArtefactError(f"{directory} is a link; versions are folders of the registry itself")
        path = directory / _MANIFEST
        with reading(str(path)):
            manifest = Manifest.from_json(parse(stored_files.read(path, limit=MAX_MANIFEST_BYTES), what=str(path)))
        name = exact.partition("@")[0]
        if manifest.version != exact or manifest.model != name:
            raise ArtefactError(f"{path} is the manifest of {manifest.version} ({manifest.model})")
        return manifest

    def versions(self) -> list[str]:
        """Every version, by name and number."""
        return [f"{name}@{number}" for name, number in sorted(self._numbers())]

    def manifests(self) -> tuple[list[Manifest], list[str]]:
        """The manifests of all versions, by name and number, and the versions whose manifest is damaged."""
        manifests, damaged = [], []
        for version in self.versions():
            try:
                manifests.append(self.manifest(version))
            except NotFound:
                continue  # removed meanwhile
            except ArtefactError:
                damaged.append(version)
        return manifests, damaged

    def aliases(self) -> dict[str, str]:
        """Every alias that is not damaged, with the version that it stands for."""
        return self.all_aliases()[0]

    def all_aliases(self) -> tuple[dict[str, str], dict[str, str]]:
        """The version that each alias stands for; and for each alias with a damaged file what is wrong with it."""
        found, damaged = {}, {}
        for name in self.names():
            try:
                found[name] = self.resolve(name)
            except ArtefactError as error:
                damaged[name] = str(error)
        return found, damaged

    def is_alias(self, name: str) -> bool:
        """Whether an alias has this name, damaged or not."""
        return self.moves(name) > 0

    def resolve(self, alias: str) -> str:
        """The version that an alias stands for; NotFound where there is none."""
        versions = self.returnable(alias)
        if not versions:
            known = ", ".join([*self.names(), *self.versions()]) or "none; train one with `threadcast train`"
            raise NotFound(f"no model or alias {alias!r}; registered: {known}")
        return versions[-1]

    def set_alias(self, alias: str, version: str, *, by: str = "") -> None:
        """Let `alias` stand for "name@number" (or for the version of another alias) from now on.

        `by` says who moves it, for the history: "key NAME" or "user NAME". NotFound where there is no
        such version, InvalidInput for an alias that is not a legal name.
        """
        self.manifest(version)  # before the lock: where there is no version, there may be no registry
        with stored_files.locked(self.root / _LOCK):
            exact = self.manifest(version).version
            self.move(alias, lambda versions: (exact, False), by)

    def prunable(self, *, keep: int, also: Collection[str] = ()) -> list[str]:
        """Versions that may be removed: all but the newest `keep` of each name, those that an alias stands for or can
        be rolled back to, and those in `also`."""
        if keep < 1:
            raise InvalidInput(f"keep={keep} must be at least 1: the newest version of each name stays")
        needed = {version for alias in self.names() for version in self.returnable(alias)}
        needed |= set(also)
        by_name: dict[str, list[str]] = {}
        for version in self.versions():
            by_name.setdefault(version.partition("@")[0], []).append(version)
        old = [version for versions in by_name.values() for version in versions[:-keep]]
        return [version for version in old if version not in needed]

    def remove(self, version: str) -> None:
        """Remove a version from the registry. It disappears by one rename, so readers see all of it or nothing.

        NotFound where there is none; InvalidInput for the newest of its name, so that no number is used again, and
        where an alias stands for it or can be rolled back to it.
        """
        directory = self.root / "versions" / version
        if not _VERSION.fullmatch(version) or not directory.is_dir():
            raise NotFound(f"no model {version}; registered: {', '.join(self.versions()) or 'none'}")
        with stored_files.locked(self.root / _LOCK):
            for alias in self.names():
                if version in self.returnable(alias):
                    raise InvalidInput(f"{version} stays: {alias} stands for it or can be rolled back to it")
            name, _, number = version.partition("@")
            if int(number) == max(n for own, n in self._numbers() if own == name):
                raise InvalidInput(f"{version} stays: it is the newest of its name")
            with stored_files.staged(self.root) as staged:
                os.rename(directory, staged / version)
                stored_files.sync(directory.parent)

    def _numbers(self) -> Iterator[tuple[str, int]]:
        directory = self.root / "versions"
        for entry in directory.iterdir() if directory.is_dir() else ():
            if match := _VERSION.fullmatch(entry.name):
                yield match[1], int(match[2])


def _is_file_name(name: str) -> bool:
    return bool(_FILE.fullmatch(name)) and name != _MANIFEST


def _json(document: Any, *, what: str) -> bytes:
    try:
        return json_bytes(document)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} must be JSON without NaN: {error}") from error


def _libraries() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"threadcast": __version__}
    for package in ("numpy", "scikit-learn", "xgboost"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
