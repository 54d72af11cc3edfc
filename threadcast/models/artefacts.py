"""Model state as bytes that cannot hold code: JSON, and NPZ without pickles.

Nothing here unpickles. Readers get the files that `PerformanceModel.from_files` was given. They raise ArtefactError for
whatever is missing, damaged, of another kind, or larger than `MAX_UNPACKED_BYTES` when unpacked, and import nothing
that a file names.
"""

from __future__ import annotations

import io
import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from threadcast.core.errors import ArtefactError, ThreadcastError
from threadcast.core.json_reading import parse

MAX_UNPACKED_BYTES = 2**30
"""Most bytes that one archive may unpack to; 68 random forests of 30 trees need a hundredth of it."""

_DAMAGED = (
    ThreadcastError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, OSError, MemoryError,
    RecursionError, NotImplementedError, OverflowError, SyntaxError, UserWarning, struct.error, tokenize.TokenError,
    zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile,
)  # fmt: skip
"""Exceptions that readers of damaged files were observed to raise; UserWarning: numpy's warning about headers of
Python 2, where warnings are errors."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a damaged file makes its reader raise inside the block into an ArtefactError that names `what`."""
    try:
        yield
    except ArtefactError:
        raise
    except _DAMAGED as error:
        raise ArtefactError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error


def content(files: Mapping[str, bytes], name: str) -> bytes:
    """The file of this name; ArtefactError where it is missing."""
    if name not in files:
        raise ArtefactError(f"the artefact has no file {name!r}, only {', '.join(sorted(files)) or 'none'}")
    return files[name]


def json_bytes(document: Any) -> bytes:
    """`document` as JSON text."""
    return json.dumps(document, indent=1, allow_nan=False).encode()


def read_json(files: Mapping[str, bytes], name: str) -> Any:
    """The JSON document in a file."""
    with reading(name):
        return parse(content(files, name), what=name)


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays of numbers by name, as NPZ."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **cast(dict[str, Any], dict(arrays)))
    return buffer.getvalue()


def read_npz(files: Mapping[str, bytes], name: str) -> dict[str, NDArray[Any]]:
    """The arrays of an NPZ file by name; ArtefactError unless all of them are float64 or int32."""
    data = content(files, name)
    with reading(name):
        _check_archive(data, name)
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        if any(array.dtype not in (np.float64, np.int32) for array in arrays.values()):
            raise ArtefactError(f"{name} holds arrays other than float64 and int32")
    return arrays


_ENCRYPTED = 0x1
"""Bit of an archive entry's flags."""


def _check_archive(data: bytes, name: str) -> None:
    """Raise ArtefactError for archives that unpack to too much, and for arrays that claim more bytes than there are."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        total = sum(entry.file_size for entry in entries)
        if total > MAX_UNPACKED_BYTES:
            raise ArtefactError(f"{name} would unpack to {total} bytes, more than {MAX_UNPACKED_BYTES}")
        for entry in entries:
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & _ENCRYPTED:
                raise ArtefactError(f"{name} is packed otherwise than by DEFLATE, or encrypted")
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as stream:
                    _check_array(stream, entry, name)


def _check_array(stream: Any, entry: zipfile.ZipInfo, name: str) -> None:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ArtefactError(f"{name}/{entry.filename} is an array of unknown format version {version}")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > entry.file_size - stream.tell():
        raise ArtefactError(f"{name}/{entry.filename} claims shape {shape} of {dtype}, which it does not hold")
