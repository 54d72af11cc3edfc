"""Saves what this machine has learned and compiled as a bundle, and loads one: all of it or, on an error, nothing."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import BundleError
from threadcast.core.printable import printable
from threadcast.runtime.bundles.archive import Bundle, read_bundle, write_bundle
from threadcast.runtime.bundles.manifest import CURVES, Fingerprint, Part, part_of
from threadcast.runtime.bundles.measured import add_new, from_text, measured_in_steps, to_text
from threadcast.runtime.bundles.places import Places, check_plan_file

_logger = logging.getLogger("threadcast")


def save(path: Path, places: Places, *, plans_only: bool = False) -> Bundle:
    """Write all plans, and without `plans_only` measurements in steps and compiled code, to the bundle `path`.

    A plan's file name is a digest, which does not tell its machine: if several machines share the folder, all their
    plans are saved. Each is found only by the machine and the PyTorch that it is for. Damaged plans are left out, with
    a warning. BundleError where there is nothing to save.
    """
    files: dict[str, bytes] = {}
    if not plans_only and (measured := measured_in_steps(places.store, places.machine)):
        files[CURVES] = to_text(measured)
    for name, file in places.files().items():
        if plans_only and part_of(name) != "plan":
            continue
        try:
            content = file.read_bytes()
            if part_of(name) == "plan":
                check_plan_file(file.name, content)
            files[name] = content
        except FileNotFoundError:  # dropped since it was listed
            continue
        except BundleError as error:
            _logger.warning("%s is left out: %s", printable(str(file)), error)
    if not files:
        others = "" if plans_only else f", measurements in steps ({places.store or 'off'}) or compiled code"
        raise BundleError(f"there is nothing to save: no plans in {places.plans}{others}; run optimised steps first")
    return write_bundle(path, Fingerprint.here(places.machine), files)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a bundle's loading has written: the paths of its files, and the number of measurements added to the store.

    `present` are files that were there before and were not replaced. `untrusted` are compiled files that were left out.
    """

    bundle: Bundle
    written: Sequence[str]
    present: Sequence[str]
    untrusted: Sequence[str]
    measurements: int

    def count(self, part: Part) -> int:
        """Return the number of written files of one part."""
        return sum(part_of(path) == part for path in self.written)


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
    if differences := bundle.fingerprint.differences(Fingerprint.here(places.machine)):
        raise BundleError(f"{path} does not fit here: it is for {'; for '.join(differences)}")
    plans, compiled = bundle.of("plan"), bundle.of("compiled")
    targets = {name: places.target(name) for name in (*plans, *(compiled if trust else ()))}
    for name in plans:
        check_plan_file(targets[name].name, bundle.contents[name])
    curves = bundle.contents.get(CURVES)
    measured = [] if curves is None else from_text(curves, places.machine)
    present = [name for name, target in targets.items() if not replace and target.exists()]
    written = [name for name in targets if name not in set(present)]
    with ExitStack() as drafts:  # at its end they replace the files that they are for; on an error none does
        for name in written:
            targets[name].parent.mkdir(parents=True, exist_ok=True)
            drafts.enter_context(replacing(targets[name])).write_bytes(bundle.contents[name])
        added = 0
        if places.store is not None and curves is not None:
            added = add_new(places.store, measured, key=f"bundle {hashlib.sha256(curves).hexdigest()}")
    return Loaded(bundle, written, present, [] if trust else compiled, added)
