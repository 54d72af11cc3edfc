"""Minutes of mixed load with reloads, a retraining and killed workers: no wrong answer, nothing lost, memory flat.

Part of `service.py --soak MINUTES`. Clients ask for curves and plans and store measurements under idempotency keys,
with retries, as clients should. `soak_truth` says what every answer must be.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import urllib3
from service_place import MACHINE, Server, make_place, measured, ops, service
from soak_truth import Truth, judge_plan

from threadcast.core import Machine, Op
from threadcast.core.curve_codec import from_answer
from threadcast.core.settings_table import STEPS
from threadcast.models.measured import group
from threadcast.models.promotion import promote_if_better
from threadcast.models.registry import ModelRegistry
from threadcast.prediction import arrow_curves
from threadcast.store import Store
from threadcast.store.holding import all_that_holds

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.postgres import server as postgresql_server

Database = Literal["sqlite", "postgresql"]
SERVICES: dict[Database, int] = {"sqlite": 1, "postgresql": 2}
WORKERS, THREADS, CLIENTS = 2, 8, 4
RELOAD_S, KILL_S, MOVE_S, SAMPLE_S = 20.0, 60.0, 40.0, 5.0
BATCH, ASKED_CURVES = 30, 60
WARM, WINDOWS, FLAT = 1 / 3, 4, 1.05
"""Memory is looked at after a third of the time, in so many parts: the largest of their medians may be so many times
the smallest."""

OTHER = Machine.uniform("other", 8, group_size=2)
"""The machine whose measurements clients store; what is known of `MACHINE` changes only at known moments."""


class Soak:
    """One run."""

    def __init__(self, servers: list[Server], directory: Path, store: Store, learned: list[Op]) -> None:
        self.servers, self.store, self.learned = servers, store, learned
        self.stopping = threading.Event()
        self.registry = ModelRegistry(directory / "models")
        self.truth = Truth(store, self.registry, cases_measured=len(MACHINE.cases()))
        self.lock = threading.Lock()
        self.wrong: list[str] = []
        self.stored: dict[str, tuple[str, float]] = {}
        self.counts: dict[str, int] = {}
        self.to_judge: queue.Queue[Callable[[], str] | None] = queue.Queue()
        self.judged = 0
        self.factor = 1.0
        """By how much the machine is slower than it was at first."""
        self.oldest = [server.workers()[0] for server in servers]
        self.alive: list[set[int]] = [set() for _ in servers]
        """Workers of each service when they were looked at last."""
        self.settled: set[int] = set()
        """Workers that were there twice in turn: what a server forks to start other programs is gone by then."""
        self.killed: set[int] = set()
        self.memory: list[tuple[float, list[int]]] = []
        """Times, and bytes in memory of each service's oldest worker."""
        self.unseen, self.others = ops(300, seed=11), ops(50, seed=21)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse | None:
        """The answer; None where there was none even after retries, as while a worker is replaced."""
        what = f"{method} {path.split('/mm-')[0].split('?')[0]}"
        url = random.choice(self.servers).url
        for attempt in range(20):
            try:
                answer = urllib3.request(method, url + path, json=body, headers=headers, timeout=60, retries=False)
            except urllib3.exceptions.HTTPError:
                self.count(f"{what}: connection lost")
            else:
                self.count(f"{what} {answer.status}")
                if answer.status not in (429, 503):
                    return answer
            time.sleep(0.05 * (attempt + 1))
        return None

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fail(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)

    def client(self, number: int) -> None:
        """Ask and store until told to stop."""
        chance = random.Random(number)
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            chosen = chance.random()
            if chosen < 0.4:
                self.predict([chance.choice(self.unseen)], chance)
            elif chosen < 0.5:
                self.predict(chance.sample(self.unseen, BATCH), chance)
            elif chosen < 0.8:
                self.curve(chance.choice(self.learned[:ASKED_CURVES]))
            elif chosen < 0.95:
                self.add(f"{number}-{turn}", chance)
            else:
                self.plan(chance)

    def judge(self) -> None:
        """Judge answers until there will be no more."""
        while (judged := self.to_judge.get()) is not None:
            try:
                wrong = judged()
            except Exception as error:  # noqa: BLE001 - what cannot be judged is wrong
                wrong = repr(error)
            self.judged += 1
            if wrong:
                self.fail(wrong)

    def predict(self, asked: list[Op], chance: random.Random) -> None:
        form = chance.choice(("application/json", arrow_curves.MEDIA_TYPE))
        body = {"ops": [op.to_json() for op in asked], "machine": MACHINE.to_json()}
        answer = self.send("POST", "/v1/predictions", body, Accept=form)
        if answer is None or answer.status != 200:
            self.fail(f"prediction: {answer and answer.status}")
            return
        content = answer.data

        def judged() -> str:
            keys = [op.key for op in asked]
            if form == arrow_curves.MEDIA_TYPE:
                _, table = arrow_curves.read_stream(content, keys=keys, cases=MACHINE.cases())
            else:
                document = json.loads(content)
                table = from_answer(document, cases=MACHINE.cases(), rows=len(asked))
                if document["ops"] != keys:
                    return "forecasts of other ops than were asked for"
            return self.truth.judge_forecasts(table, asked)

        self.to_judge.put(judged)

    def curve(self, op: Op) -> None:
        asked_s = time.monotonic()
        answer = self.send("GET", f"/v1/curves/{op.key}?machine={MACHINE.fingerprint}")
        answered_s = time.monotonic()
        if answer is None or answer.status != 200:
            self.fail(f"curve: {answer and answer.status}")
            return
        content = answer.data

        def judged() -> str:
            document = json.loads(content)
            if document["ops"] != [op.key]:
                return "the curve of another op than was asked for"
            table = from_answer(document, cases=MACHINE.cases(), rows=1)
            return self.truth.judge_curve(table, op, asked_s, answered_s)

        self.to_judge.put(judged)

    def add(self, key: str, chance: random.Random) -> None:
        op, threads = chance.choice(self.others), chance.choice((1, 2, 4, 8))
        seconds = op.flops / 2e10 * (0.1 + 0.9 / threads) * chance.uniform(0.9, 1.1) * self.factor
        entries = [{"op": 0, "threads": threads, "seconds": [seconds]}]
        body = {"machine": OTHER.to_json(), "ops": [op.to_json()], "measurements": entries}
        answer = self.send("POST", "/v1/measurements", body, **{"Idempotency-Key": key})
        if answer is not None and answer.status == 201:
            with self.lock:
                self.stored[key] = op.key, seconds
        else:
            self.fail(f"measurement: {answer and answer.status}")

    def plan(self, chance: random.Random) -> None:
        listed = [
            {"id": name, "kind": "mm", "curve": {str(n): chance.uniform(0.5, 1) / n for n in (1, 2, 3, 4)}}
            for name in "abcd"
        ]
        graph = {"schema": "threadcast.graph/1", "ops": listed, "edges": [["a", "c"], ["b", "d"]]}
        answer = self.send("POST", "/v1/plans", {"graph": graph, "cores": 4})
        if answer is None or answer.status != 200:
            self.fail(f"plan: {answer and answer.status}")
            return
        document = json.loads(answer.data)
        self.to_judge.put(lambda: judge_plan(document, graph))

    def every(self, seconds: float, what: Callable[[], None]) -> None:
        while not self.stopping.wait(seconds):
            what()

    def reload(self) -> None:
        for server in self.servers:
            server.process.send_signal(signal.SIGHUP)
        self.count("reload")

    def kill(self) -> None:
        """Kill the youngest worker of one service; the oldest one's memory is looked at."""
        pid = random.choice(self.servers).workers()[-1]
        if pid not in self.oldest:
            self.killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            self.count("killed worker")

    def move(self) -> None:
        """Measurements that drift, and a model that is retrained by them."""
        moves = self.counts.get("drifted", 0)
        self.factor = (3.0, 1.0)[moves % 2]
        with self.truth.moving():
            self.store.add(measured(self.learned, seed=100 + moves, factor=self.factor))
        self.count("drifted")
        entries = group(all_that_holds(self.store.measurements(), self.store.changes))
        promote_if_better(self.registry, "champion", entries, steps=STEPS, by="soak")

    def sample(self) -> None:
        """Note the memory of the oldest workers, which live from the beginning to the end, and workers that ended."""
        for number, server in enumerate(self.servers):
            before, now = self.alive[number], set(server.workers())
            self.settled |= before & now
            for pid in (before - now) & self.settled - self.killed:
                self.fail(f"a worker of service {number + 1} that nobody killed has ended ({pid})")
            self.alive[number] = now
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.oldest]
        self.memory.append((time.monotonic(), [n * os.sysconf("SC_PAGE_SIZE") for n in pages]))

    def run(self, seconds: float) -> None:
        """All of it at once."""
        judging = threading.Thread(target=self.judge)
        judging.start()
        works = [lambda number=number: self.client(number) for number in range(CLIENTS)]
        for every_s, what in (
            (RELOAD_S, self.reload),
            (KILL_S, self.kill),
            (MOVE_S, self.move),
            (SAMPLE_S, self.sample),
        ):
            works.append(lambda every_s=every_s, what=what: self.every(every_s, what))
        threads = [threading.Thread(target=self.noted, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        self.stopping.wait(seconds)
        self.stopping.set()
        for thread in threads:
            thread.join()
        self.to_judge.put(None)
        judging.join()

    def noted(self, work: Callable[[], None]) -> None:
        """Do this work; an exception is among what went wrong."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a client that ends would go unseen
            self.fail(f"a thread of the clients ended: {error!r}")

    def verdict(self) -> list[str]:
        """What went wrong."""
        kept = {
            (m.op.key, sample.seconds)
            for m in self.store.measurements(machine=OTHER.fingerprint)
            for sample in m.samples
        }
        found = [*self.wrong, *self.store.check()]
        lost = [key for key, stored in self.stored.items() if stored not in kept]
        if lost:
            found.append(f"{len(lost)} acknowledged measurements are lost: {lost[:5]}")
        return found

    def memory_rows(self) -> tuple[list[tuple[str, str]], list[str]]:
        """What the memory of each service was by time, and what is wrong with it."""
        rows, wrong = [], []
        start_s, end_s = self.memory[0][0], self.memory[-1][0]
        from_s = start_s + WARM * (end_s - start_s)
        bounds = [start_s, *np.linspace(from_s, end_s, WINDOWS + 1).tolist()]
        for number in range(len(self.servers)):
            medians = [
                float(np.median([sizes[number] for at, sizes in self.memory if low <= at <= high])) / 2**20
                for low, high in pairwise(bounds)
            ]
            growth = max(medians[1:]) / min(medians[1:])
            rows.append((f"MiB of service {number + 1}, by time", " ".join(f"{size:.0f}" for size in medians)))
            rows.append((f"largest over smallest of service {number + 1}", f"{growth:.3f}"))
            if growth > FLAT:
                wrong.append(f"the memory of service {number + 1} is not flat")
        return rows, wrong


@contextlib.contextmanager
def database(kind: Database, directory: Path) -> Iterator[str]:
    """The URL of an empty database with durable commits."""
    if kind == "postgresql":
        with postgresql_server(durable=True) as made:
            yield made.url
    else:
        yield f"sqlite:///{directory}/store.db"


def soak(seconds: float, kind: Database) -> tuple[list[dict[str, object]], list[str]]:
    """What happened, as rows of data/studies/service_soak.csv, and what went wrong."""
    loads = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="threadcast-soak-")))
        url = stack.enter_context(database(kind, directory))
        learned = make_place(directory, url)
        store = stack.enter_context(Store.open(url))
        with ExitStack() as serving:
            settings = {"workers": WORKERS, "threads": THREADS}
            servers = [serving.enter_context(service(directory, url, **settings)) for _ in range(SERVICES[kind])]
            load = Soak(servers, directory, store, learned)
            load.run(seconds)
            loads.append(os.getloadavg()[2])
        wrong = load.verdict()
        moves = len(load.registry.history("champion"))
    rows, grown = load.memory_rows()
    wrong += grown
    refused = {
        status: sum(n for what, n in load.counts.items() if what.endswith(f" {status}")) for status in (429, 503)
    }
    verdict = {
        "minutes": f"{seconds / 60:g}", "models promoted": moves - 1, "measurements acknowledged": len(load.stored),
        "answers judged": load.judged, "answers 429": refused[429], "answers 503": refused[503],
        "things wrong": len(wrong), "load at the end": f"{loads[0]:.1f}",
    }  # fmt: skip
    title = "PostgreSQL, two services" if kind == "postgresql" else "SQLite, one service"
    of_kind = {"verdict": verdict.items(), "memory": rows, "request": sorted(load.counts.items())}
    found = [
        {"database": title, "kind": of, "what": what, "value": value}
        for of, pairs in of_kind.items()
        for what, value in pairs
    ]
    return found, wrong
