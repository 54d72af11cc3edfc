"""Saves what this machine has learned and compiled as a bundle."""

from __future__ import annotations

import logging
from pathlib import Path

from threadcast.core.errors import BundleError
from threadcast.core.printable import printable
from threadcast.runtime.bundles.archive import Bundle, write_bundle
from threadcast.runtime.bundles.curves import measured_in_steps, to_text
from threadcast.runtime.bundles.manifest import CURVES, Fingerprint, Part, is_path_of
from threadcast.runtime.bundles.places import Places
from threadcast.runtime.bundles.plan_files import check_plan_file

_logger = logging.getLogger("threadcast")


def save(path: Path, places: Places, *, plans_only: bool = False) -> Bundle:
    """Write all plans, and without `plans_only` measurements in steps and compiled code, to the bundle `path`.

    A plan's file name is a digest, which does not tell its machine: if several machines share the folder, all their
    plans are saved. Each is found only by the machine and the PyTorch that it is for. BundleError where there is
    nothing to save.
    """
    files: dict[str, tuple[Part, bytes]] = {}
    if not plans_only and (measured := measured_in_steps(places.store, places.machine)):
        files[CURVES] = ("curves", to_text(measured))
    for folder, where in places.folders().items():
        part: Part = "plan" if folder == "plans" else "compiled"
        if part == "plan" or not plans_only:
            files |= _files(folder, where, part, places)
    if not files:
        others = "" if plans_only else f", measurements in steps ({places.store or 'off'}) or compiled code"
        raise BundleError(f"there is nothing to save: no plans in {places.plans}{others}; run optimised steps first")
    return write_bundle(path, Fingerprint.here(places.machine), files)


def _files(folder: str, where: Path, part: Part, places: Places) -> dict[str, tuple[Part, bytes]]:
    """The files of one folder that belong to the part, by their paths in a bundle; damaged plans are left out."""
    found: dict[str, tuple[Part, bytes]] = {}
    for file in sorted(where.iterdir()) if where.is_dir() else ():
        name = f"{folder}/{file.name}"
        if not is_path_of(part, name) or places.target(name) is None or not file.is_file():
            continue
        try:
            content = file.read_bytes()
            if part == "plan":
                check_plan_file(file.name, content)
            found[name] = (part, content)
        except FileNotFoundError:  # dropped since it was listed
            continue
        except BundleError as error:
            _logger.warning("%s is left out: %s", printable(str(file)), error)
    return found
