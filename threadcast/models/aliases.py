"""Aliases: names for a model version that can be moved to another version and back.

Each move of an alias is a file `<root>/aliases/<alias>/<number>.json`, made by one hard link from the staging
directory. The link fails where the number exists already, and the writer then decides again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from threadcast.core.atomic_file import put_new
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.models.artefacts import json_bytes, reading
from threadcast.models.stored_files import read, staged, sync, write

SCHEMA = "threadcast.alias/1"
MAX_MOVE_BYTES = 4096
MOST_MOVER = 128
"""Longest text that says who moved an alias, in characters."""

_ALIAS = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Move:
    """One move of an alias: to `version` at `time` (ISO 8601, UTC); `rollback` undid the move before it.

    `by` says who moved it (`mover`); "" where nobody said so.
    """

    version: str
    time: str
    rollback: bool = False
    by: str = ""

    def to_json(self) -> dict[str, Any]:
        """The move as commands and the service show it."""
        return {"version": self.version, "time": self.time, "rollback": self.rollback, "by": self.by}


def check_alias(alias: str) -> None:
    """Raise InvalidInput for what cannot be an alias."""
    if not _ALIAS.fullmatch(alias):
        raise InvalidInput(f"alias={alias!r} must be lower-case letters, digits, - and _, a letter first")


class Aliases:
    """The aliases stored below the directory `root`; `now` is the clock for the times of moves."""

    def __init__(self, root: Path, now: Callable[[], datetime]) -> None:
        self.root, self._now = root, now

    def names(self) -> list[str]:
        """Every alias that was ever set, also one with a damaged file; no file is read."""
        directory = self.root / "aliases"
        found = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
        return [name for name in found if self.moves(name)]

    def history(self, alias: str) -> list[Move]:
        """Every move of an alias, oldest first; empty for an alias that was never set.

        ArtefactError where a file is damaged.
        """
        if not _ALIAS.fullmatch(alias):
            return []
        return [_read_move(self.root / "aliases" / alias / f"{number}.json") for number in self._move_numbers(alias)]

    def _move_numbers(self, alias: str) -> list[int]:
        entries = (self.root / "aliases" / alias).glob("*.json")
        return sorted(int(entry.stem) for entry in entries if entry.stem.isdecimal())

    def moves(self, alias: str) -> int:
        """How often an alias has moved; a caller sees from it whether the alias has moved since, without reading any
        file."""
        return len(self._move_numbers(alias)) if _ALIAS.fullmatch(alias) else 0

    def before(self, alias: str) -> str | None:
        """The version that `rollback` would return to; None where there is none."""
        versions = self.returnable(alias)
        return versions[-2] if len(versions) > 1 else None

    def rollback(self, alias: str, *, by: str = "", expected: str | None = None) -> str:
        """Undo the last move that was not undone yet and return the version that the alias stands for now.

        `by` says who does. NotFound where there is no earlier one, and where the alias does not stand for `expected`
        (if given) any more.
        """

        def previous(versions: list[str]) -> tuple[str, bool]:
            if len(versions) < 2:
                raise NotFound(f"alias {alias!r} has no earlier version to go back to")
            if expected not in (None, versions[-1]):
                raise NotFound(f"alias {alias!r} stands for {versions[-1]} and not for {expected} any more")
            return versions[-2], True

        return self.move(alias, previous, by)

    def returnable(self, alias: str) -> list[str]:
        """The versions that rollbacks can return to, and the current one last; empty for an alias that was never
        set."""
        versions: list[str] = []
        for move in self.history(alias):
            if not move.rollback:
                versions.append(move.version)
            elif versions:
                versions.pop()
        return versions

    def move(self, alias: str, choose: Callable[[list[str]], tuple[str, bool]], by: str) -> str:
        """Add the move that `choose` returns for the versions that the alias could return to (the current one last): a
        version, and whether it undoes a move. Returns the version."""
        check_alias(alias)
        mover = "".join(c if c.isprintable() else "?" for c in by)[:MOST_MOVER]
        directory = self.root / "aliases" / alias
        while True:
            number = 1 + max(self._move_numbers(alias), default=0)
            version, rollback = choose(self.returnable(alias))
            time = self._now().isoformat(timespec="seconds")
            document = {"schema": SCHEMA, "version": version, "rollback": rollback, "time": time, "by": mover}
            with staged(self.root) as stage:
                write(stage / "move.json", json_bytes(document))
                (stage / "move.json").chmod(0o644)
                directory.mkdir(parents=True, exist_ok=True)
                try:
                    put_new(stage / "move.json", directory / f"{number}.json")
                except FileExistsError:
                    continue  # somebody moved it meanwhile
                sync(directory)
                return version


def _read_move(path: Path) -> Move:
    with reading(str(path)):
        document = parse(read(path, limit=MAX_MOVE_BYTES), what=str(path))
        check_schema(document, SCHEMA)
        version, time = (member(document, name, str) for name in ("version", "time"))
        return Move(version, time, member(document, "rollback", bool), member(document, "by", str, default=""))
