"""Loads a bundle: checks all of it, then writes all of it or, on an error, nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from threadcast.core import Measurement
from threadcast.core.atomic_file import replacing
from threadcast.core.errors import BundleError
from threadcast.runtime.bundles.archive import Bundle, read_bundle
from threadcast.runtime.bundles.curves import add_new, from_text
from threadcast.runtime.bundles.manifest import CURVES, BundledFile, Fingerprint, Part
from threadcast.runtime.bundles.places import Places
from threadcast.runtime.bundles.plan_files import check_plan_file


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a bundle's loading has written.

    `present` are files that were there before and were not replaced. `untrusted` are compiled files that were left out.
    """

    bundle: Bundle
    written: tuple[BundledFile, ...]
    present: tuple[BundledFile, ...]
    untrusted: tuple[BundledFile, ...]
    measurements: int
    """Number of measurements added to the store."""

    def count(self, part: Part) -> int:
        """Return the number of written files of one part."""
        return sum(file.part == part for file in self.written)


def load(
    path: Path, places: Places, *, trust: bool = False, replace: bool = False, sha256: str | None = None
) -> Loaded:
    """Add the bundle's plans, measurements and, with `trust`, compiled code to those of this machine.

    Files that are there stay as they are, unless `replace`: they come from this machine's own steps. Compiled code runs
    in the processes that use it: without `trust` it is left out. With `sha256` the bundle must have this digest.

    All is checked first. BundleError, with nothing written, for a bundle that is damaged, for another machine or other
    versions, or has a file that this version cannot use; OSError or StoreError, with no file written, where the disk is
    full or the store cannot be written.
    """
    bundle = read_bundle(path)
    if sha256 is not None and bundle.sha256 != sha256.lower():
        raise BundleError(f"{path} has the SHA-256 {bundle.sha256}, not {sha256}")
    if differences := bundle.manifest.fingerprint.differences(Fingerprint.here(places.machine)):
        raise BundleError(f"{path} does not fit here: it is for {'; for '.join(differences)}")
    measured = _checked(bundle, places, trust=trust)
    written: list[BundledFile] = []
    present: list[BundledFile] = []
    for file in [*bundle.manifest.of("plan"), *(bundle.manifest.of("compiled") if trust else ())]:
        (written if replace or not _target(places, file).exists() else present).append(file)
    with ExitStack() as drafts:  # at its end they replace the files that they are for; on an error none does
        _write_drafts(drafts, bundle, written, places)
        added = 0
        if places.store is not None and measured:
            digest = hashlib.sha256(bundle.contents[CURVES]).hexdigest()
            added = add_new(places.store, measured, key=f"bundle {digest}", machine=places.machine)
    untrusted = () if trust else tuple(bundle.manifest.of("compiled"))
    return Loaded(bundle, tuple(written), tuple(present), untrusted, added)


def _checked(bundle: Bundle, places: Places, *, trust: bool) -> list[Measurement]:
    """The bundle's measurements; BundleError where these, or any file that would be written, are of no use here."""
    for file in bundle.manifest.of("plan"):
        check_plan_file(_target(places, file).name, bundle.contents[file.path])
    for file in bundle.manifest.of("compiled") if trust else ():
        _target(places, file)
    return from_text(bundle.contents[CURVES], places.machine) if CURVES in bundle.contents else []


def _write_drafts(drafts: ExitStack, bundle: Bundle, files: Iterable[BundledFile], places: Places) -> None:
    for file in files:
        target = _target(places, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        drafts.enter_context(replacing(target)).write_bytes(bundle.contents[file.path])


def _target(places: Places, file: BundledFile) -> Path:
    target = places.target(file.path)
    if target is None:
        raise BundleError(
            f"{file.path} was compiled from other sources, by other flags or for another instruction set than this "
            f"process uses ({places.native.name}, {places.fused.name}); load the bundle without compiled code"
        )
    return target
