"""A client in another language, generated from the running service's description, compiles and works."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import urllib3

from tests.service.service_data import MACHINE, OPS
from tests.service.test_server import running
from tests.services import NODE, TYPESCRIPT, need
from threadcast.service.keys import add_key
from threadcast.service.settings import ServiceSettings

HERE = Path(__file__).parent / "typescript"

pytestmark = pytest.mark.system


def run(*command: str) -> str:
    """Run a program of Node.js or of the installed packages in TYPESCRIPT."""
    path = os.pathsep.join([str(NODE), str(TYPESCRIPT / "node_modules/.bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "NO_UPDATE_NOTIFIER": "1"}
    done = subprocess.run(command, cwd=TYPESCRIPT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_a_generated_typescript_client_compiles_and_runs_against_the_service(
    settings: ServiceSettings, tmp_path: Path
) -> None:
    need("TypeScript")
    key = add_key(tmp_path / "keys.json", "runtime", ["read", "ingest"])
    for name in ("tsconfig.json", "openapi-ts.config.mjs", "runtime.ts"):
        shutil.copy(HERE / name, TYPESCRIPT)
    with running(settings, tmp_path, "--keys", str(tmp_path / "keys.json")) as server:
        described = urllib3.request("GET", f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
        (TYPESCRIPT / "openapi.json").write_bytes(described.data)
        run("openapi-ts", "--silent")
        run("tsc")
        assert run("node", "out/runtime.js", server.url, key, OPS[0].key, MACHINE.fingerprint) == "done\n"
