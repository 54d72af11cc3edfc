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
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, measured, ops, service
from soak_truth import Truth, judge_plan

from threadcast.core import Machine, Op
from threadcast.core.curve_codec import from_answer
from threadcast.core.holding import all_that_holds
from threadcast.core.settings_table import STEPS
from threadcast.models.measured import group
from threadcast.models.promotion import promote_if_better
from threadcast.models.registry import ModelRegistry
from threadcast.prediction import arrow_curves
from threadcast.store import Store

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

TITLE = "# The service under mixed load\n"
HEAD = """## {title}

`make bench-service SOAK={minutes:g} DATABASE={database}`, {run}.
{services} of {workers} worker processes on one store and one registry of models, and {clients} clients
that ask one of them at random, with retries, for forecasts of {batch} ops (as JSON and as Arrow) and of one,
for curves of measured ops, for plans, and store measurements. Models are read anew every {reload:g} s, the youngest
worker of one service is killed every {kill:g} s, and every {move:g} s what is measured changes, and
the model is retrained. Every number of every forecast, curve and plan is held against what its version says in the
clients' process, and every acknowledged measurement is looked for in the store at the end; a worker that ends unkilled
is wrong, too. All of it took only time that other work on the machine left: load {load}.
"""


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
        rows = [{"op": 0, "threads": threads, "seconds": seconds}]
        body = {"machine": OTHER.to_json(), "ops": [op.to_json()], "rows": rows}
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

    def memory_rows(self) -> tuple[list[str], list[str]]:
        """Rows of a table of memory by time, one a service, and what is wrong with it."""
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
            rows.append(f"| {number + 1} | {' | '.join(f'{size:.0f}' for size in medians)} | {growth:.3f} |")
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


def soak(seconds: float, kind: Database) -> tuple[str, int]:
    """What happened, as a section of the page, and 0 where nothing went wrong."""
    run, loads = RunFacts.now(), []
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
    count = SERVICES[kind]
    head = HEAD.format(
        title="PostgreSQL, two services" if kind == "postgresql" else "SQLite, one service", database=kind,
        minutes=seconds / 60, run=run, services=f"{count} services" if count > 1 else "One service", workers=WORKERS,
        clients=CLIENTS, batch=BATCH, reload=RELOAD_S, kill=KILL_S, move=MOVE_S, load=f"{loads[0]:.1f} at the end",
    )  # fmt: skip
    ends = {status: [n for what, n in load.counts.items() if what.endswith(f" {status}")] for status in (429, 503)}
    refused = {status: sum(counts) for status, counts in ends.items()}
    said = (
        f"{moves - 1} models promoted; {len(load.stored)} measurements acknowledged; {load.judged} answers judged; "
        f"{refused[429]} times 429, {refused[503]} times 503; {len(wrong)} things wrong."
    )
    part_min = seconds / 60 * (1 - WARM) / WINDOWS
    names = [f"first {seconds / 60 * WARM:.1f} min", *(f"next {part_min:.1f}" for _ in range(WINDOWS))]
    lines = [said, "", f"| service | {' | '.join(names)} | largest over smallest, after the first |"]
    lines += ["|---|" + "---|" * (WINDOWS + 2), *rows, "", "MiB of the oldest worker, medians.", ""]
    lines += ["| what | times |", "|---|---|"]
    lines += [f"| {what} | {n} |" for what, n in sorted(load.counts.items())]
    if wrong:
        lines += ["", *(f"- WRONG: {line}" for line in wrong[:20])]
    return "\n".join([head, *lines, ""]), bool(wrong)


def with_section(page: str, section: str) -> str:
    """The page with this section in place of the one of the same title, or at its end."""
    title = section.partition("\n")[0]
    parts = page.split("\n## ") if page else [TITLE]
    kept = [part if i == 0 else f"## {part}" for i, part in enumerate(parts)]
    kept = [part for part in kept if not part.startswith(title + "\n")]
    return "\n".join([*(part.rstrip() + "\n" for part in kept), section.rstrip() + "\n"])
