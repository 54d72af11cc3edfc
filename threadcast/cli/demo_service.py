"""The demo's own prediction service, in another process, which is always stopped at the end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from threadcast.core.errors import ServiceUnavailable

START_S = 60.0
"""Seconds that the service may take to import its libraries and load its model; it took 3 on 2 cores."""
STOP_S = 10.0
"""Seconds that the service may take to finish after SIGTERM before it is killed."""


@contextmanager
def service(store: Path, models: Path, *, log: Path) -> Iterator[str]:
    """Run `threadcast serve` on a free port of this machine inside the block, and return its URL.

    ServiceUnavailable, with the end of its log, when the service does not start.
    """
    command = [
        sys.executable, "-c", "from threadcast.cli.main import main; main()", "serve", "--json", "--port", "0",
        "--store", str(store), "--models", str(models),
    ]  # fmt: skip
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    giving_up = threading.Timer(START_S, process.kill)
    giving_up.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        giving_up.cancel()
        if not line:
            tail = " ".join(log.read_text().split()[-60:])
            raise ServiceUnavailable(f"the prediction service did not start: {tail}")
        yield json.loads(line)["url"]
    finally:
        giving_up.cancel()
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
