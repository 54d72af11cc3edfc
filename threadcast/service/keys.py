"""API keys: shown once when they are created; the file has only their digests.

A key is 256 random bits, so one round of SHA-256 is enough: it cannot be guessed as passwords can.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import ConfigError, FormatError, InvalidInput, NotFound
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.models.stored_files import locked
from threadcast.service.rates import Rate

SCHEMA = "threadcast.keys/1"
Scope = Literal["read", "ingest", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""The scopes of a key: read allows requests that change nothing, ingest storing measurements, admin everything."""

PREFIX = "tc_"
"""Prefix of every key, so that scanners find keys in logs and repositories."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is stored: its name, scopes, digest and time of creation, without the key itself."""

    name: str
    scopes: tuple[str, ...]
    sha256: str
    created: str
    rate_limit: str | None = None
    """A rate of its own in place of the setting `service.rate_limit`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(
                f"name={self.name!r} must be lower-case letters, digits, _, . and -, none of these three first"
            )
        if not self.scopes or not set(self.scopes) <= set(SCOPES):
            raise InvalidInput(f"scopes={self.scopes} must be one or more of {', '.join(SCOPES)}")
        if not _DIGEST.fullmatch(self.sha256):
            raise InvalidInput(f"key {self.name!r} has no SHA-256 digest")
        if self.rate_limit is not None:
            Rate.parse(self.rate_limit)

    def allows(self, scope: str) -> bool:
        """Whether the key has this scope; admin includes all."""
        return scope in self.scopes or "admin" in self.scopes


class KeyFile:
    """The keys in a file, which is read again whenever it has changed. Safe to use from threads.

    For a file that is missing or damaged every method raises ConfigError, so that no request is allowed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._keys: tuple[Key, ...] = ()
        self.keys()

    def keys(self) -> tuple[Key, ...]:
        """The keys in the file now."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise ConfigError(f"the key file {self._path} cannot be read: {error.strerror}") from error
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        with self._lock:
            if stamp != self._stamp:
                self._keys, self._stamp = read_keys(self._path), stamp
            return self._keys

    def find(self, token: str) -> Key | None:
        """Return the key with this token, None where there is none. The time taken does not depend on the token."""
        digest, found = _digest(token), None
        for key in self.keys():
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys in a file; ConfigError where it is not a key file."""
    try:
        document = parse(path.read_bytes(), what=str(path))
        check_schema(document, SCHEMA)
        keys = tuple(_key(entry, f"/keys/{i}") for i, entry in enumerate(member(document, "keys", list)))
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from error
    except InvalidInput as error:
        raise ConfigError(f"{path} is no key file: {error}") from error
    if len({key.name for key in keys}) != len(keys):
        raise ConfigError(f"{path} is no key file: two keys have one name")
    return keys


def add_key(path: Path, name: str, scopes: Sequence[str], *, rate_limit: str | None = None) -> str:
    """Create a key, add its digest to the file, and return it; it cannot be shown again.

    A missing file is created, readable by its owner only; one that is there keeps its mode, and its owner and group
    where this user may set them. InvalidInput for a wrong name or rate, or a name that is in use.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    key = Key(name, tuple(scope for scope in SCOPES if scope in scopes), _digest(token), created, rate_limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _changing(path):
        keys = read_keys(path) if path.exists() else ()
        if any(other.name == name for other in keys):
            raise InvalidInput(f"there is a key named {name!r} in {path}; remove it first, or choose another name")
        _write(path, (*keys, key))
    return token


def remove_key(path: Path, name: str) -> None:
    """Remove a key from the file: running services refuse it from the next request on. NotFound where there is none."""
    read_keys(path)  # where there is no file, there is perhaps no folder for a lock
    with _changing(path):
        keys = read_keys(path)
        remaining = tuple(key for key in keys if key.name != name)
        if len(remaining) == len(keys):
            names = ", ".join(key.name for key in keys) or "none"
            raise NotFound(f"no key named {name!r} in {path}; there are: {names}")
        _write(path, remaining)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Within the block no other process changes the file: each would write what it has read, without the other's keys.

    The lock is a file of its own beside it, since the key file is replaced; it stays. ArtefactError as for `locked`.
    """
    target = path.resolve()
    with locked(target.with_name(f".{target.name}.lock")):
        yield


def _write(path: Path, keys: Sequence[Key]) -> None:
    entries = [
        {"name": k.name, "scopes": list(k.scopes), "sha256": k.sha256, "created": k.created}
        | ({} if k.rate_limit is None else {"rate_limit": k.rate_limit})
        for k in keys
    ]
    with replacing(path) as draft:
        draft.touch(mode=0o600)  # keeps its mode when it takes the place of the file
        draft.write_text(json.dumps({"schema": SCHEMA, "keys": entries}, indent=1) + "\n", encoding="utf-8")
        if path.exists():
            _let_same_users_read(draft, path.stat())


def _let_same_users_read(draft: Path, former: os.stat_result) -> None:
    """Give a file the owner, group and mode of another one: a service that runs as another user goes on reading it."""
    for owner, group in ((former.st_uid, -1), (-1, former.st_gid)):
        with suppress(PermissionError):  # only root may give files away
            os.chown(draft, owner, group)
    others = 0 if draft.stat().st_gid == former.st_gid else stat.S_IRWXG  # they are not for another group
    draft.chmod(stat.S_IMODE(former.st_mode) & ~others)


def _key(entry: Any, pointer: str) -> Key:
    name, digest, created = (member(entry, part, str, pointer=pointer) for part in ("name", "sha256", "created"))
    scopes = member(entry, "scopes", list, pointer=pointer)
    if not all(isinstance(scope, str) for scope in scopes):
        raise FormatError("scopes must be text", pointer=f"{pointer}/scopes")
    rate = entry.get("rate_limit")
    if not isinstance(rate, str | None):
        raise FormatError("rate_limit must be text", pointer=f"{pointer}/rate_limit")
    return Key(name, tuple(scopes), digest, created, rate)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
