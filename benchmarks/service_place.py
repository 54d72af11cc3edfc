"""A store, a registry and a running service for benchmarks: a machine of 68 cases, ops measured at some of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from threadcast.core import Machine, Measurement, Op, Sample, TensorSpec
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import is_held_out
from threadcast.store import Store

MACHINE = Machine.uniform("xeon-phi", 68, group_size=2)
LEARNED_OPS = 200
_SERVE = [sys.executable, "-c", "from threadcast.cli.main import main; main()", "serve"]


def matmul(m: int, k: int, n: int) -> Op:
    """A product of matrices."""
    return Op("mm", (TensorSpec((m, k)), TensorSpec((k, n))), outputs=(TensorSpec((m, n)),))


def ops(count: int, *, seed: int) -> list[Op]:
    """So many different products, drawn at random."""
    random = np.random.default_rng(seed)
    found: dict[str, Op] = {}
    while len(found) < count:
        op = matmul(*(int(side) for side in random.integers(16, 4096, 3)))
        found[op.key] = op
    return list(found.values())


def measured(of: list[Op], *, seed: int) -> list[Measurement]:
    """Each op at every case, by a law with noise."""
    random = np.random.default_rng(seed)
    made = []
    for op in of:
        share = random.uniform(0.01, 0.2)
        for case in MACHINE.cases():
            lone_s = op.flops / 2e10 * (share + (1 - share) / case.threads) + 2e-6
            seconds = lone_s * np.exp(random.normal(0, 0.02, 3))
            made.append(Measurement(op, MACHINE, case, tuple(Sample(float(s)) for s in seconds)))
    return made


def make_place(directory: Path) -> list[Op]:
    """A registry with a learned curve, and a store, in `directory`; the ops learned of."""
    learned = ops(LEARNED_OPS, seed=0)
    known = measured(learned, seed=1)
    with Store.open(directory / "store.db") as store:
        store.add(known)
    model = LearnedCurve().fit([m for m in known if not is_held_out(m.op.key)])  # as retrained ones are
    registry = ModelRegistry(directory / "models")
    registry.set_alias("champion", registry.save(model, trained_on={}, metrics={}))
    return learned


class Server:
    """A server process in a session of its own, and the URL that it printed."""

    def __init__(self, command: list[str], directory: Path, **settings: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **settings}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=directory, env=environment, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[^\s\"]+", line)
        if found is None:
            raise SystemExit(f"no server: {line!r}")
        self.url = found[0]

    def stop(self) -> None:
        """End it with all its processes."""
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def service(directory: Path, *, threads: int = 16, **settings: str) -> Iterator[Server]:
    """The service over what `make_place` made; `settings` are environment variables."""
    where = ["--store", str(directory / "store.db"), "--models", str(directory / "models"), "--port", "0"]
    server = Server([*_SERVE, *where, "--workers", "1", "--threads", str(threads)], directory, **settings)
    try:
        yield server
    finally:
        server.stop()
