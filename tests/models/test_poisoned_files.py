"""Poison in the place of every file of every kind is refused, with its hash made right, and nothing in it runs."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.stored_kinds import KINDS, stored
from threadcast.core.errors import ArtefactError
from threadcast.models import artefacts
from threadcast.models.registry import ModelRegistry
from threadcast.models.registry_of_kinds import create

CANARY = "poisoned"


def places() -> list[tuple[str, str]]:
    """Every file of every way of storing, as kind and name."""
    return [(kind, name) for kind in KINDS for name in stored(kind)]


class Poison:
    """Leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (CANARY, "w"))


@pytest.fixture(autouse=True)
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The canary: a file that poison would leave in the working directory."""
    directory = tmp_path / "working"
    directory.mkdir()
    monkeypatch.chdir(directory)
    yield
    assert list(directory.iterdir()) == []


def zip_of(entries: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def npy_of(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def pickles_inside(data: bytes) -> bytes:
    """Every entry of an archive a pickle; of what is no archive, one."""
    poison = pickle.dumps(Poison())
    return zip_of(dict.fromkeys(unzipped(data), poison)) if data[:2] == b"PK" else zip_of({"data.pkl": poison})


def objects_inside(data: bytes) -> bytes:
    """Every array of an archive one of objects."""
    poison = npy_of(np.array([Poison()], dtype=object))
    entries = unzipped(data) if data[:2] == b"PK" else {"a.npy": b""}
    return zip_of(
        {name: poison if name.endswith(".npy") else entry for name, entry in entries.items()} | {"x.npy": poison}
    )


POISONS: dict[str, Callable[[bytes], bytes]] = {
    "a pickle": lambda data: pickle.dumps(Poison()),
    "pickles inside": pickles_inside,
    "objects inside": objects_inside,
    "nothing": lambda data: b"",
    "half of it": lambda data: data[: len(data) // 2],
    "a shell script": lambda data: b"#!/bin/sh\ntouch poisoned\n",
    "deep JSON": lambda data: b'{"a":' * 100_000,
    "a huge number": lambda data: b'{"recipe": ' + b"9" * 100_000 + b"}",
    "an infinite number": lambda data: b'{"recipe": 1e999}',
}  # fmt: skip


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
def test_poison_in_the_place_of_any_file_is_refused(poison: Callable[[bytes], bytes]) -> None:
    for kind, name in places():
        files = stored(kind)
        with pytest.raises(ArtefactError):
            create(kind).from_files({**files, name: poison(files[name])})
        assert not Path(CANARY).exists(), (kind, name)


@pytest.mark.parametrize("kind", ["ols", "learned_curve"])
def test_the_registry_refuses_poison_by_its_hash_and_with_the_hash_made_right(tmp_path: Path, kind: str) -> None:
    name = list(stored(kind))[-1]
    registry = ModelRegistry(tmp_path / "models")
    version = registry.save(create(kind).from_files(stored(kind)), trained_on={}, metrics={})
    directory = registry.root / "versions" / version
    poison = pickle.dumps(Poison())
    (directory / name).write_bytes(poison)
    with pytest.raises(ArtefactError, match=r"sha256 differs|longer than"):
        registry.load(version)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"][name] = {"sha256": hashlib.sha256(poison).hexdigest(), "bytes": len(poison)}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtefactError, match="cannot be loaded"):
        registry.load(version)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = bytes(10 << 20)
    bomb = zip_of({f"{i}.npy": zeros for i in range(4)}, compression=zipfile.ZIP_DEFLATED, compresslevel=9)
    assert len(bomb) < 50_000
    monkeypatch.setattr(artefacts, "MAX_UNPACKED_BYTES", 30 << 20)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args, **options: pytest.fail("it was unpacked"))
    with pytest.raises(ArtefactError, match="would unpack to 41943040 bytes"):
        artefacts.read_npz({"file": bomb}, "file")


def test_a_bomb_that_lies_about_its_size_unpacks_to_no_more_than_it_claims() -> None:
    data = bytearray(zip_of({"a.npy": npy_of(np.zeros(1 << 20))}, compression=zipfile.ZIP_DEFLATED))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 200)  # unpacked size in the directory
    with pytest.raises(ArtefactError, match="Bad CRC-32"):
        artefacts.read_npz({"file": bytes(data)}, "file")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_otherwise_is_refused(method: int) -> None:
    data = zip_of({"a.npy": npy_of(np.zeros(3))}, compression=method)
    with pytest.raises(ArtefactError, match="otherwise than by DEFLATE"):
        artefacts.read_npz({"file": data}, "file")


def test_an_encrypted_archive_is_refused() -> None:
    data = bytearray(zip_of({"a.npy": npy_of(np.zeros(3))}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    with pytest.raises(ArtefactError, match="encrypted"):
        artefacts.read_npz({"file": bytes(data)}, "file")


def test_a_version_that_is_a_link_is_refused(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path / "models")
    version = registry.save(create("hill_climb"), trained_on={}, metrics={})
    directory = registry.root / "versions" / version
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtefactError, match="is a link"):
        registry.load(version)
