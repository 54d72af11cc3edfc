"""Minutes of mixed load with reloads, retraining and killed workers: no wrong answer, nothing lost, memory flat.

Part of `service.py --soak MINUTES`. Clients ask for curves and plans and store measurements under idempotency keys,
with retries, as clients should. Every answer names its version; its curve is held against what that version says here.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import urllib3
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, measured, ops, service

from threadcast.core import Op
from threadcast.models.base import PerformanceModel
from threadcast.models.registry import ModelRegistry
from threadcast.store import Store

CLIENTS = 4
RELOAD_S, KILL_S, MOVE_S, SAMPLE_S = 20.0, 60.0, 40.0, 5.0
GROWTH = 1.2
"""Times the memory of the first third that the last third may take."""


HEAD = """# The service under mixed load

`make bench-service SOAK={minutes:g}`, {run}: two worker processes
and {clients} clients that ask for curves and plans and store measurements, with retries. Models are read anew every
{reload:g} s, the youngest worker is killed every {kill:g} s, and every {move:g} s what is measured changes, so that the
service retrains. Every prediction is held against what the version that it names says in the clients' process, and
every acknowledged measurement is looked for in the store at the end.
"""


class Soak:
    """One run."""

    def __init__(self, server: Server, directory: Path, learned: list[Op]) -> None:
        self.server, self.directory, self.learned = server, directory, learned
        self.stopping = threading.Event()
        self.registry = ModelRegistry(directory / "models")
        self.models: dict[str, PerformanceModel] = {}
        self.lock = threading.Lock()
        self.wrong: list[str] = []
        self.stored: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self.factor = 1.0
        """By how much the machine is slower than it was at first."""
        self.memory: list[tuple[float, int]] = []
        self.oldest = server.workers()[0]
        self.unseen, self.others = ops(300, seed=11), ops(50, seed=21)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse | None:
        """The answer; None where there was none even after retries, as while a worker is replaced."""
        for attempt in range(20):
            with suppress(urllib3.exceptions.HTTPError):
                answer = urllib3.request(
                    method, self.server.url + path, json=body, headers=headers, timeout=30, retries=False
                )
                if answer.status not in (429, 503):
                    self.count(f"{method} {path.split('/mm-')[0].split('?')[0]} {answer.status}")
                    return answer
            time.sleep(0.05 * (attempt + 1))
        return None

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def model(self, version: str) -> PerformanceModel:
        with self.lock:
            if version not in self.models:
                self.models[version] = self.registry.load(version)
            return self.models[version]

    def client(self, number: int) -> None:
        """Ask and store until told to stop."""
        chance = random.Random(number)
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            chosen = chance.random()
            if chosen < 0.5:
                self.predict(chance.choice(self.unseen))
            elif chosen < 0.8:
                self.curve(chance.choice(self.learned))
            elif chosen < 0.95:
                self.store(f"{number}-{turn}", chance)
            else:
                self.plan(chance)

    def predict(self, op: Op) -> None:
        answer = self.send("POST", "/v1/predictions", {"ops": [op.to_json()], "machine": MACHINE.to_json()})
        if answer is None or answer.status != 200:
            self.wrong.append(f"prediction: {answer and answer.status}")
            return
        table = json.loads(answer.data)
        expected = self.model(table["model"]).predict(op, [], MACHINE.cases(), machine=MACHINE)
        if not np.array_equal(table["seconds"][0], expected.seconds):
            self.wrong.append(f"{op.key} is not what {table['model']} says")

    def curve(self, op: Op) -> None:
        answer = self.send("GET", f"/v1/curves/{op.key}")
        if answer is None or answer.status != 200 or json.loads(answer.data)["ops"] != [op.key]:
            self.wrong.append(f"curve: {answer and answer.status}")

    def store(self, key: str, chance: random.Random) -> None:
        op, threads = chance.choice(self.others), chance.choice((1, 2, 4, 8))
        seconds = op.flops / 2e10 * (0.1 + 0.9 / threads) * chance.uniform(0.9, 1.1) * self.factor
        rows = [{"op": 0, "threads": threads, "seconds": seconds}]
        body = {"machine": MACHINE.fingerprint, "ops": [op.to_json()], "rows": rows}
        answer = self.send("POST", "/v1/measurements", body, **{"Idempotency-Key": key})
        if answer is not None and answer.status == 201:
            with self.lock:
                self.stored[key] = seconds
        else:
            self.wrong.append(f"measurement: {answer and answer.status}")

    def plan(self, chance: random.Random) -> None:
        curves = {str(threads): chance.uniform(0.5, 1) / threads for threads in (1, 2, 4)}
        listed = [{"id": name, "kind": "mm", "curve": curves} for name in "abcd"]
        graph = {"schema": "threadcast.graph/1", "ops": listed, "edges": [["a", "c"], ["b", "d"]]}
        answer = self.send("POST", "/v1/plans", {"graph": graph, "cores": 4})
        if answer is None or answer.status != 200 or json.loads(answer.data)["gap"] < -1e-9:
            self.wrong.append(f"plan: {answer and answer.status}")

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        while not self.stopping.wait(seconds):
            what()

    def reload(self) -> None:
        self.server.process.send_signal(signal.SIGHUP)
        self.count("reload")

    def kill(self) -> None:
        """Kill the youngest worker; the oldest one's memory is looked at."""
        os.kill(self.server.workers()[-1], signal.SIGKILL)
        self.count("killed worker")

    def move(self) -> None:
        """Measurements that drift, so that the service retrains."""
        self.factor = (3.0, 1.0)[self.counts.get("drifted", 0) % 2]
        with Store.open(self.directory / "store.db") as store:
            store.add(measured(self.learned, seed=self.counts.get("drifted", 0), factor=self.factor))
        self.count("drifted")

    def sample(self) -> None:
        """Note the memory of the oldest worker, which lives from the beginning to the end."""
        resident = int(Path(f"/proc/{self.oldest}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.memory.append((time.monotonic(), resident))

    def run(self, seconds: float) -> None:
        """All of it at once."""
        works = [lambda number=number: self.client(number) for number in range(CLIENTS)]
        for every_s, what in (
            (RELOAD_S, self.reload),
            (KILL_S, self.kill),
            (MOVE_S, self.move),
            (SAMPLE_S, self.sample),
        ):
            works.append(lambda every_s=every_s, what=what: self.every(every_s, what))
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        self.stopping.wait(seconds)
        self.stopping.set()
        for thread in threads:
            thread.join()

    def verdict(self) -> list[str]:
        """What went wrong."""
        with Store.open(self.directory / "store.db") as store:
            kept = {sample.seconds for m in store.measurements() for sample in m.samples}
            found = [*self.wrong, *store.check()]
        lost = [key for key, seconds in self.stored.items() if seconds not in kept]
        if lost:
            found.append(f"{len(lost)} acknowledged measurements are lost: {lost[:5]}")
        third = len(self.memory) // 3
        if third:
            first, last = (
                np.median([size for _, size in part]) for part in (self.memory[:third], self.memory[-third:])
            )
            self.notes.append(
                f"The oldest worker took {first / 2**20:.0f} MiB in the first third of the time, "
                f"{last / 2**20:.0f} MiB in the last (medians)."
            )
            if last > GROWTH * first:
                found.append("memory grows")
        return found


def soak(seconds: float) -> tuple[str, int]:
    """What happened, as a page, and 0 where nothing went wrong."""
    run = RunFacts.now()
    with tempfile.TemporaryDirectory(prefix="threadcast-soak-") as name:
        directory = Path(name)
        learned = make_place(directory)
        with service(directory, workers=2, THREADCAST_SERVICE_RETRAIN_DRIFT="1.3") as server:
            load = Soak(server, directory, learned)
            load.run(seconds)
        wrong = load.verdict()
        moves = len(load.registry.history("champion"))
    head = HEAD.format(
        minutes=seconds / 60, run=run, clients=CLIENTS, reload=RELOAD_S,
        kill=KILL_S, move=MOVE_S,
    )  # fmt: skip
    said = f"{moves - 1} models promoted; {len(load.stored)} measurements acknowledged; {len(wrong)} things wrong."
    lines = [said, *load.notes, "", "| what | times |", "|---|---|"]
    lines += [f"| {what} | {count} |" for what, count in sorted(load.counts.items())]
    if wrong:
        lines += ["", *(f"- WRONG: {line}" for line in wrong[:20])]
    return "\n".join([head, *lines, ""]), bool(wrong)
