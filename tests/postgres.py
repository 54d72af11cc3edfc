"""A PostgreSQL server of the test's own, on a socket in a directory of its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.services import need

USER = "postgres"
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """A server in a directory of its own, which can be ended and started again; `url` is of its first database."""

    place: str
    directory: Path
    identity: dict[str, Any]
    durable: bool

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.place}"

    def start(self) -> None:
        """Start it; it takes connections when this returns."""
        options = f"-c listen_addresses='' -c unix_socket_directories={self.place}"
        options += "" if self.durable else " -c fsync=off"
        self._control("-w", "-l", f"{self.place}/log", "-o", options, "start")

    def end(self) -> None:
        """End it as a crash would, with all its connections."""
        self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> None:
        command = [self.directory / "pg_ctl", "-D", f"{self.place}/data", *arguments]
        subprocess.run(command, cwd=self.place, check=True, stdout=subprocess.DEVNULL, **self.identity)


@contextmanager
def server(*, durable: bool = False) -> Iterator[Server]:
    """A server that runs. Skips, with the reason, where there is none to run.

    Only if it is `durable` does what it stores survive the end of the machine.
    """
    directory = need("PostgreSQL").parent
    as_root = os.geteuid() == 0  # as whom PostgreSQL refuses to run
    owner = pwd.getpwnam(USER) if as_root else pwd.getpwuid(os.geteuid())
    identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if as_root else {}
    with tempfile.TemporaryDirectory(prefix="tc-pg-") as place:  # short: socket paths end at 107 characters
        os.chown(place, owner.pw_uid, owner.pw_gid)
        make = [directory / "initdb", "-D", f"{place}/data", "-A", "trust", "-U", USER, "-E", "UTF8", "-N"]
        subprocess.run(make, cwd=place, check=True, capture_output=True, text=True, **identity)
        made = Server(place, directory, identity, durable)
        made.start()
        try:
            yield made
        finally:
            made.end()


@contextmanager
def running() -> Iterator[str]:
    """A server; yields the URL of its first database."""
    with server() as made:
        yield made.url


def fresh_database(server: str) -> str:
    """The URL of an empty schema of its own, which its connections take for the whole database.

    A database would be 300 files, which take as long to remove as the tests take.
    """
    name = f"store{next(_numbers)}"
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"
