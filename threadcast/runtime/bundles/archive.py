"""A bundle on disk: a zip with a manifest and, by their paths, the files.

Reading trusts nothing: bounds are checked before anything is listed or unpacked, and a path is a known one or refused.
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
from dataclasses import asdict, dataclass
from pathlib import Path

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import BundleError, FormatError
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.runtime.bundles.manifest import SCHEMA, Fingerprint, Part, part_of

MANIFEST = "manifest.json"

MOST_FILES = 20_000
"""Files of a bundle. A plan takes two, a fused operator one; a convention."""
MOST_BYTES = 2**30
"""Bytes of a bundle, and of its files unpacked, as for models of the registry."""
_MOST_MANIFEST_BYTES = 2**16
_LISTED = b"PK\x01\x02"
"""How each file begins in the list of a zip, all of which `zipfile` reads, whatever number of files the zip says."""
_COUNT = slice(-12, -10)
"""Where the zip says it, if it ends as a bundle's does."""

_DAMAGE = (BundleError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError)
"""What `zipfile` and this file raise about files that are no bundles."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle is for, when it was written (ISO 8601, UTC), its contents by path, and the whole file's SHA-256."""

    fingerprint: Fingerprint
    created: str
    contents: Mapping[str, bytes]
    sha256: str

    def of(self, part: Part) -> list[str]:
        """Return the paths of the files of one part."""
        return [path for path in self.contents if part_of(path) == part]


def write_bundle(path: Path, fingerprint: Fingerprint, files: Mapping[str, bytes]) -> Bundle:
    """Write a bundle of `files` by path to `path`, whole or not at all, and return it.

    BundleError where there are more files or bytes than a bundle may have; OSError where it cannot be written.
    """
    size_bytes = sum(map(len, files.values()))
    if len(files) > MOST_FILES or size_bytes > MOST_BYTES:
        what = f"{len(files):,} files of {size_bytes:,} bytes"
        raise BundleError(f"{what} are more than a bundle may have ({MOST_FILES:,} and {MOST_BYTES:,})")
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {"schema": SCHEMA, "fingerprint": asdict(fingerprint), "created": created}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        archive.writestr(MANIFEST, json.dumps(document, indent=1))
        for name, content in sorted(files.items()):
            archive.writestr(name, content)
    with replacing(path) as draft:
        draft.write_bytes(packed.getbuffer())
    return Bundle(fingerprint, created, dict(sorted(files.items())), hashlib.sha256(packed.getbuffer()).hexdigest())


def read_bundle(path: Path) -> Bundle:
    """Read the bundle in `path`, and check it as a whole.

    BundleError, which says why, for a file that is not a bundle, is damaged, or unpacks to more than a bundle may have;
    OSError where it cannot be read.
    """
    with path.open("rb") as file:
        packed = file.read(MOST_BYTES + 1)
    try:
        if len(packed) > MOST_BYTES:
            raise BundleError(f"it is larger than {MOST_BYTES:,} bytes")
        if packed.count(_LISTED) > MOST_FILES + 1:
            raise BundleError(f"it has more than {MOST_FILES:,} files")
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = _checked_entries(archive, int.from_bytes(packed[_COUNT], "little"))
            document = parse(_unpacked(archive, entries.pop(MANIFEST)), what=MANIFEST)
            check_schema(document, SCHEMA)
            fingerprint, created = Fingerprint.from_json(document), member(document, "created", str)
            contents = {name: _unpacked(archive, entry) for name, entry in entries.items()}
    except FormatError as error:
        raise BundleError(f"{path} is not a bundle: {MANIFEST}{error.pointer}: {error}") from error
    except _DAMAGE as error:
        raise BundleError(f"{path} is not a bundle, or is damaged: {error}") from error
    return Bundle(fingerprint, created, contents, hashlib.sha256(packed).hexdigest())


def _checked_entries(archive: zipfile.ZipFile, count: int) -> dict[str, zipfile.ZipInfo]:
    """The archive's entries by name; BundleError where one is not a plain file that is known, or all are too large."""
    entries = {entry.filename: entry for entry in archive.infolist()}
    if not len(entries) == len(archive.infolist()) == count:
        raise BundleError("it has two files of the same name, or more or fewer than it says")
    if MANIFEST not in entries:
        raise BundleError(f"it has no {MANIFEST}")
    for name, entry in entries.items():
        if name != MANIFEST and part_of(name) is None:
            raise BundleError(f"no file of a bundle has the path {name!r}")
        if entry.external_attr >> 16 & 0o170000 not in (0, 0o100000):
            raise BundleError(f"{name!r} is a folder, a link or a device")
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleError(f"{name!r} is encrypted, or packed otherwise than by DEFLATE")
    if entries[MANIFEST].file_size > _MOST_MANIFEST_BYTES or sum(e.file_size for e in entries.values()) > MOST_BYTES:
        raise BundleError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    return entries


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with archive.open(entry) as file:
        return file.read(entry.file_size + 1)  # a bare read() would unpack up to 2 GiB of an entry whose size is a lie
