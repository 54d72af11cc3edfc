"""Writes and reads the file of a bundle: a zip with `manifest.json` and each different content once, named by its hash.

Reading trusts nothing: bounds are checked before anything is unpacked, and every content against its size and hash.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import BundleError, FormatError
from threadcast.core.json_reading import parse
from threadcast.runtime.bundles.manifest import BundledFile, Fingerprint, Manifest, Part

MANIFEST = "manifest.json"
_CONTENT = "content/"

MOST_FILES = 20_000
"""Files of a bundle. A plan takes two, a fused operator one; a convention."""
MOST_BYTES = 2**30
"""Bytes of a bundle, and of its files unpacked, as for models of the registry."""
_MOST_MANIFEST_BYTES = 512 * MOST_FILES

_DAMAGE = (BundleError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError)
"""What `zipfile` and this file raise about files that are no bundles."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle's manifest, its contents by path, and the SHA-256 of the whole file."""

    manifest: Manifest
    contents: Mapping[str, bytes]
    sha256: str


def write_bundle(path: Path, fingerprint: Fingerprint, files: Mapping[str, tuple[Part, bytes]]) -> Bundle:
    """Write a bundle of `files` by path to `path`, whole or not at all, and return it.

    BundleError where there are more files or bytes than a bundle may have; OSError where it cannot be written.
    """
    size_bytes = sum(len(content) for _, content in files.values())
    if len(files) > MOST_FILES or size_bytes > MOST_BYTES:
        what = f"{len(files):,} files of {size_bytes:,} bytes"
        raise BundleError(f"{what} are more than a bundle may have ({MOST_FILES:,} and {MOST_BYTES:,})")
    listed = tuple(
        BundledFile(name, part, len(content), hashlib.sha256(content).hexdigest())
        for name, (part, content) in sorted(files.items())
    )
    manifest = Manifest(fingerprint, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), listed)
    contents = {name: content for name, (_, content) in files.items()}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        archive.writestr(MANIFEST, json.dumps(manifest.to_json(), indent=1))
        for sha256, content in {file.sha256: contents[file.path] for file in listed}.items():
            archive.writestr(_CONTENT + sha256, content)
    with replacing(path) as draft:
        draft.write_bytes(packed.getbuffer())
    return Bundle(manifest, contents, hashlib.sha256(packed.getbuffer()).hexdigest())


def read_bundle(path: Path) -> Bundle:
    """Read the bundle in `path`, and check it as a whole.

    BundleError, which says why, for a file that is not a bundle, is damaged, was changed, or unpacks to more than a
    bundle may have; OSError where it cannot be read.
    """
    with path.open("rb") as file:
        packed = file.read(MOST_BYTES + 1)
    try:
        if len(packed) > MOST_BYTES:
            raise BundleError(f"it is larger than {MOST_BYTES:,} bytes")
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = _checked_entries(archive)
            document = parse(_unpacked(archive, entries[MANIFEST]), what=MANIFEST)
            manifest = Manifest.from_json(document)
            contents = _contents(archive, entries, manifest)
    except FormatError as error:
        raise BundleError(f"{path} is not a bundle: {MANIFEST}{error.pointer}: {error}") from error
    except _DAMAGE as error:
        raise BundleError(f"{path} is not a bundle, or is damaged: {error}") from error
    return Bundle(manifest, contents, hashlib.sha256(packed).hexdigest())


def _checked_entries(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's entries by name; BundleError where one is not a plain file, or all are too large."""
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) > MOST_FILES + 1:
        raise BundleError(f"it has more than {MOST_FILES:,} files")
    if len(entries) < len(archive.infolist()):
        raise BundleError("it has two files of the same name")
    if MANIFEST not in entries:
        raise BundleError(f"it has no {MANIFEST}")
    for name, entry in entries.items():
        kind = entry.external_attr >> 16 & 0o170000
        if entry.is_dir() or kind not in (0, 0o100000):
            raise BundleError(f"{name!r} is a folder, a link or a device")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"{name!r} is encrypted, or packed otherwise than by DEFLATE")
    if entries[MANIFEST].file_size > _MOST_MANIFEST_BYTES or sum(e.file_size for e in entries.values()) > MOST_BYTES:
        raise BundleError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    return entries


def _contents(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], manifest: Manifest) -> dict[str, bytes]:
    """The contents of the manifest's files by path; BundleError for one that is missing, added or changed."""
    listed = {_CONTENT + file.sha256 for file in manifest.files}
    if odd := sorted(listed ^ (set(entries) - {MANIFEST})):
        raise BundleError(f"{odd[0]!r} is in only one of the manifest and the archive")
    if len(manifest.files) > MOST_FILES or sum(file.size_bytes for file in manifest.files) > MOST_BYTES:
        raise BundleError(f"it has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes")
    unpacked = {name: _unpacked(archive, entries[name]) for name in listed}
    for name, content in unpacked.items():
        if _CONTENT + hashlib.sha256(content).hexdigest() != name:
            raise BundleError(f"{name!r} has another SHA-256")
    contents = {file.path: unpacked[_CONTENT + file.sha256] for file in manifest.files}
    for file in manifest.files:
        if len(contents[file.path]) != file.size_bytes:
            raise BundleError(f"{file.path} has another size than the manifest says")
    return contents


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        return file.read(entry.file_size + 1)  # a bare read() would unpack up to 2 GiB of an entry whose size is a lie
