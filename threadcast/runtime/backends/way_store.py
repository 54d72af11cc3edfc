"""Keeps the fastest way that was built for a program, for later processes: its files, and for what it is right.

Each way has a folder, named by the program's operators and shapes, the libraries' versions, the processor and the
number of cores (its key), and by what it is right for: the weights, by their SHA-256, and the arguments in which the
example has infinities. So what a name stands for never changes, whatever other processes store meanwhile. The folders
that were used last stay, up to `MOST_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from threadcast.runtime.backends.libraries import versions

SCHEMA = "threadcast.way/1"
NAME = "ways"
"""Name of the folder of ways beside the history of backends."""
MOST_BYTES = 3 * 2**28
"""Bytes of all ways: of one network as large as BERT-base, or of 15 as ResNet-18; a bundle may have a third more."""
_ABOUT = "way.json"
_DRAFT_S = 3600.0
"""Seconds after which a draft is nobody's any more: its process was killed."""

_OF_PROCESSOR = "vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features"
_CHOOSE_CODE = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY"
"""Settings by which libraries choose another code than the processor's best."""

_logger = logging.getLogger("threadcast")


class WayStore:
    """Ways in a folder, which need not exist. What cannot be read or written counts as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str, weights: Callable[[], str], infinite: Sequence[int]) -> dict[str, Any] | None:
        """Return the way that `write` was given for this key, these weights and infinities, with the path of its file.

        None where there is none; one whose files are not as they were written is deleted. `weights()` is asked for the
        weights' SHA-256 only where there is a way for the key.
        """
        if not any(self._folder.glob(f"{key}*")):
            return None
        place = self._folder / name_of(key, weights(), infinite)
        if not place.is_dir():
            return None
        try:
            found: dict[str, Any] = json.loads((place / _ABOUT).read_text())
            built: dict[str, Any] = found["built"]
            names = {file.name for file in place.iterdir()} - {_ABOUT}
            whole = names == set(found["files"]) and built["file"] in names and found["schema"] == SCHEMA
            if not whole or any(_sha256(place / name) != found["files"][name] for name in names):
                raise ValueError("its files are not as they were written")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            _logger.warning("a stored backend is deleted: %s", error)
            self.drop(place.name)
            return None
        with suppress(OSError):
            os.utime(place)
        return {**built, "file": str(place / built["file"])}

    def write(self, key: str, built: dict[str, Any], weights: str, infinite: Sequence[int]) -> None:
        """Store a way with copies of the files that belong to `built["file"]`; nothing where it is stored already."""
        source, target = Path(built["file"]), self._folder / name_of(key, weights, infinite)
        files = [source] if source.suffix == ".so" else sorted(source.parent.glob(f"{source.stem}.*"))
        if target.exists():
            return
        try:
            about = {
                "schema": SCHEMA, "built": {**built, "file": source.name},
                "files": {file.name: _sha256(file) for file in files},
            }  # fmt: skip
            if sum(file.stat().st_size for file in files) > MOST_BYTES:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as draft:
                for file in files:
                    shutil.copy(file, draft)
                Path(draft, _ABOUT).write_text(json.dumps(about))
                whole = Path(draft, "whole")
                whole.mkdir()
                for file in [file for file in Path(draft).iterdir() if file != whole]:
                    file.rename(whole / file.name)
                try:
                    whole.rename(target)
                except OSError:
                    if not target.is_dir():  # else another process was first
                        raise
            self._delete_oldest()
        except OSError as error:
            _logger.warning("a backend is not stored: %s", error)

    def drop(self, name: str) -> None:
        """Delete the folder of this name."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _delete_oldest(self) -> None:
        left_bytes, places = MOST_BYTES, {place: place.stat().st_mtime for place in self._folder.iterdir()}
        used = {place: mtime for place, mtime in places.items() if not place.name.startswith(".")}
        for draft in places.keys() - used.keys():
            if time.time() - places[draft] > _DRAFT_S:
                self.drop(draft.name)
        for place in sorted(used, key=used.__getitem__, reverse=True):
            left_bytes -= sum(file.stat().st_size for file in place.iterdir())
            if left_bytes < 0:
                self.drop(place.name)


def key_of(program: bytes, conditions: Iterable[object], backends: Sequence[str]) -> str:
    """Return the key of a program, given by its JSON part, run under these conditions by one of the backends."""
    settings = [f"{name}={os.environ[name]}" for name in _CHOOSE_CODE if name in os.environ]
    here = repr([*conditions, sorted(backends), *versions(backends), *settings, *_processor()])
    whole = [program, here.encode(), _sources()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in whole)).hexdigest()[:32]


def name_of(key: str, weights: str, infinite: Sequence[int]) -> str:
    """Return the name of the folder of a way for this key, right for these weights and infinities."""
    return key + hashlib.sha256(json.dumps([weights, [*infinite]]).encode()).hexdigest()[:32]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=1)
def _processor() -> list[str]:
    """What Linux says of the first core, but for what changes: its frequency, and the like."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return [torch.backends.cpu.get_cpu_capability()]
    return [line for line in first.splitlines() if line.startswith(_OF_PROCESSOR)]


@lru_cache(maxsize=1)
def _sources() -> bytes:
    """What builds ways, and decides for which programs they are right."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
