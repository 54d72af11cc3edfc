"""Keeps the fastest way that was built for a program, for later processes: its files, and for what it is right.

Each way has a folder, named by the program's operators and shapes, the libraries' versions, the processor and the
number of cores. It is right for the same weights, by their SHA-256, and where the example has infinities in the same
arguments. The folders that were used last stay, up to `MOST_BYTES`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from threadcast.runtime.backends.library_facts import identity
from threadcast.runtime.backends.ways import NEEDED, has

SCHEMA = "threadcast.way/1"
NAME = "ways"
"""Name of the folder of ways beside the history of backends."""
MOST_BYTES = 3 * 2**28
"""Bytes of all ways: of one network as large as BERT-base, or of 15 as ResNet-18; a bundle may have a third more."""
_ABOUT = "way.json"

_logger = logging.getLogger("threadcast")


class WayStore:
    """Ways in a folder, which need not exist. What cannot be read or written counts as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str) -> dict[str, Any] | None:
        """Return what `write` was given for this key, with the path of the way's file; None where there is nothing."""
        place = self._folder / key
        try:
            found: dict[str, Any] = json.loads((place / _ABOUT).read_text())
            if found["schema"] != SCHEMA or Path(found["built"]["file"]).name != found["built"]["file"]:
                return None
            found["built"]["file"] = str(place / found["built"]["file"])
        except (OSError, ValueError, LookupError, TypeError):
            return None
        with suppress(OSError):
            os.utime(place)
        return found

    def write(self, key: str, built: dict[str, Any], **right_for: Any) -> None:
        """Store a way with copies of the files that belong to `built["file"]`."""
        source = Path(built["file"])
        files = [source] if source.suffix == ".so" else sorted(source.parent.glob(f"{source.stem}.*"))
        about = {"schema": SCHEMA, "built": {**built, "file": source.name}, **right_for}
        try:
            if sum(file.stat().st_size for file in files) > MOST_BYTES:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as draft:
                for file in files:
                    shutil.copy(file, draft)
                Path(draft, _ABOUT).write_text(json.dumps(about))
                self.drop(key)
                whole = Path(draft, "whole")
                whole.mkdir()
                for file in [file for file in Path(draft).iterdir() if file != whole]:
                    file.rename(whole / file.name)
                whole.rename(self._folder / key)
            self._delete_oldest()
        except OSError as error:
            _logger.warning("a backend is not stored: %s", error)

    def drop(self, key: str) -> None:
        """Delete the way of this key."""
        shutil.rmtree(self._folder / key, ignore_errors=True)

    def _delete_oldest(self) -> None:
        left_bytes = MOST_BYTES
        used = {place: place.stat().st_mtime for place in self._folder.iterdir() if not place.name.startswith(".")}
        for place in sorted(used, key=used.__getitem__, reverse=True):
            left_bytes -= sum(file.stat().st_size for file in place.iterdir())
            if left_bytes < 0:
                self.drop(place.name)


def key_of(program: bytes, conditions: Iterable[object], backends: Sequence[str]) -> str:
    """Return the key of a program, given by its JSON part, run under these conditions by one of the backends."""
    libraries = [identity(name) for name in sorted(backends) if name not in NEEDED or has(name)]
    whole = [program, repr([*conditions]).encode(), _sources(), *(text.encode() for text in libraries)]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in whole)).hexdigest()[:32]


@lru_cache(maxsize=1)
def _sources() -> bytes:
    """What builds ways, and decides for which programs they are right."""
    return b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
