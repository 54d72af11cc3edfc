"""Throughput and latency of the service beside a bare Flask echo.

    python benchmarks/service.py [--rounds 5] [--seconds 4] [--write]

Servers run side by side, idle but for the one that a second process loads over loopback with 8 connections; each round
loads each of them once, by turns. Ratios are those of a round. A minute and a half.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import urllib3
from figures.service import REQUESTS
from figures.study import spread
from run_facts import RunFacts
from service_place import Server, make_place, ops, service

from threadcast.scheduler.compile_planner import compile_planner

HERE = Path(__file__).parent
CONNECTIONS, THREADS = 8, 16
MOST_NEW = 500


@dataclass
class Row:
    """One thing that is loaded, and what came out of each round."""

    name: str
    url: str
    requests: list[str]
    per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def run(self, directory: Path, seconds: float) -> None:
        """Load it once."""
        file = directory / "requests.json"
        file.write_text(json.dumps(self.requests))
        command = [sys.executable, str(HERE / "service_load.py"), self.url, str(file)]
        more = ["--seconds", str(seconds), "--connections", str(CONNECTIONS)]
        found = json.loads(subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout)
        if found["wrong"]:
            raise SystemExit(f"{self.name}: {found['wrong']} answers were not 200")
        taken = np.array(found["taken_s"])
        self.per_s.append(len(taken) / found["seconds"])
        self.p50_ms.append(float(np.percentile(taken, 50)) * 1e3)
        self.p99_ms.append(float(np.percentile(taken, 99)) * 1e3)

    def figures(self, machine: str, same_server: Row, standard: Row) -> dict[str, object]:
        """Its row of data/studies/service_requests.csv."""
        return {
            "machine": machine, "what": self.name, "per_s": f"{median(self.per_s):.0f}",
            **spread("of_same_server", self.over(same_server)), **spread("of_gthread", self.over(standard)),
            "p50_ms": f"{median(self.p50_ms):.2f}", "p99_ms": f"{median(self.p99_ms):.2f}",
        }  # fmt: skip

    def over(self, other: Row) -> list[float]:
        """How many times as many requests a second as the other, round by round."""
        return [own / others for own, others in zip(self.per_s, other.per_s, strict=True)]


def request(path: str, body: object = None) -> str:
    """An HTTP request as text."""
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    content = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n{content}"


@contextmanager
def echo(directory: Path, answer_bytes: int, *more: str) -> Iterator[Server]:
    """The bare Flask application, which answers so many bytes."""
    command = [sys.executable, str(HERE / "service_echo.py"), str(THREADS), str(answer_bytes), *more]
    server = Server(command, directory)
    try:
        yield server
    finally:
        server.stop()


def measure(rounds: int, seconds: float) -> list[dict[str, object]]:
    """The rows of data/studies/service_requests.csv."""
    machine = RunFacts.now().machine
    compile_planner()  # else the service does so beside its first answers
    with tempfile.TemporaryDirectory(prefix="threadcast-service-") as name, ExitStack() as stack:
        directory = Path(name)
        learned = make_place(directory)
        ours = stack.enter_context(service(directory, threads=THREADS))
        documents = [{"ops": [op.to_json()]} for op in ops(MOST_NEW, seed=3)]
        first = urllib3.request("POST", f"{ours.url}/v1/predictions", json=documents[0], retries=False)
        size = len(first.data)
        bare = stack.enter_context(echo(directory, size))
        standard = stack.enter_context(echo(directory, size, "gthread"))
        new = [request("/v1/predictions", document) for document in documents]
        rows = [
            Row("bare Flask, the same bytes, on the same server", bare.url, [request("/echo", documents[0])]),
            Row("the same on gunicorn's gthread", standard.url, [request("/echo", documents[0])]),
            Row(
                "kept: the curve of a measured op, asked for before",
                ours.url,
                [request(f"/v1/curves/{op.key}") for op in learned],
            ),
            Row("computed: the curve of an op that is not stored", ours.url, new),
        ]
        for op in learned:
            urllib3.request("GET", f"{ours.url}/v1/curves/{op.key}", retries=False)
        for _ in range(rounds):
            for row in rows:
                row.run(directory, seconds)
    return [row.figures(machine, *rows[:2]) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help=REQUESTS.writes)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    rows = measure(asked.rounds, asked.seconds)
    print(REQUESTS.printed(rows))
    if asked.write:
        REQUESTS.store(rows, RunFacts.now(), replaces=("machine",))


if __name__ == "__main__":
    main()
