"""What a service takes in memory, and what limits, logs and traces add to a request.

    python benchmarks/service_sizes.py [--rounds 7] [--requests 300] [--write]

A minute or two.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3
from figures.service import MEMORY, OVERHEADS
from figures.study import spread
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, ops, service

from threadcast.core import Op, OpGraph

LARGE_OPS, GRAPH_OPS = 10_000, 100
LONG_S = 120.0


def kind_of(pid: int, workers: list[int], parent: int) -> str:
    """What a process of the service is for."""
    return "parent" if pid == parent else "worker" if pid in workers else "planner and helpers"


def below(pid: int) -> list[int]:
    """A process and all that came from it."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    return [pid, *(found for child in children for found in below(int(child)))]


def memory(server: Server) -> dict[str, float]:
    """MiB of each kind of process: its own pages, and its part of those that it shares (PSS)."""
    found: dict[str, float] = {}
    workers = server.workers()
    for pid in below(server.process.pid):
        try:
            kib = int(re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0])
            kind = kind_of(pid, workers, server.process.pid)
        except (FileNotFoundError, ProcessLookupError, IndexError):
            continue  # it has just ended
        found[kind] = found.get(kind, 0.0) + kib / 1024
    return found


def post(server: Server, path: str, body: object) -> None:
    answer = urllib3.request("POST", server.url + path, json=body, timeout=LONG_S, retries=False)
    if answer.status not in (200, 201):
        raise SystemExit(f"{path}: {answer.status} {answer.data[:200]!r}")


def sizes(directory: Path, learned: list[Op]) -> list[dict[str, object]]:
    """The rows of memory: one worker, after more and more of the work."""
    stages = []
    with service(directory) as server:
        wait(lambda: b'"ready"}' in urllib3.request("GET", f"{server.url}/health/ready").data.replace(b" ", b""))
        stages.append(("started", memory(server)))
        for op in learned:
            urllib3.request("GET", f"{server.url}/v1/curves/{op.key}", timeout=LONG_S)
        stages.append((f"{len(learned)} curves", memory(server)))
        post(server, "/v1/predictions", {"ops": [op.to_json() for op in ops(LARGE_OPS, seed=7)]})
        stages.append((f"a batch of {LARGE_OPS:,} ops x 68 cases", memory(server)))
        graph = OpGraph(tuple(map(str, range(GRAPH_OPS))), tuple(learned[:GRAPH_OPS]), ())
        post(server, "/v1/plans", {"graph": graph.to_json(), "machine": MACHINE.fingerprint})
        stages.append((f"a plan of {GRAPH_OPS} ops", memory(server)))
    return [
        {"after": name, "process": kind, "mib": f"{mib:.0f}"}
        for name, found in stages
        for kind, mib in sorted(found.items())
    ]


def wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG_S
    while not holds():
        if time.monotonic() > until:
            raise SystemExit("it took too long")
        time.sleep(0.5)


class Receiver(BaseHTTPRequestHandler):
    """Takes traces and forgets them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def costs(directory: Path, key: str, rounds: int, requests: int) -> list[dict[str, object]]:
    """The rows of what a request takes, one connection, by what is on; services take turns."""
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    on = {
        "nothing": {},
        "a rate": {"THREADCAST_SERVICE_RATE_LIMIT": "1000000/second"},
        "access log as JSON": {"THREADCAST_SERVICE_ACCESS_LOG": "true", "THREADCAST_SERVICE_LOG_FORMAT": "json"},
        "traces": {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server_port}"},
    }
    took: dict[str, list[float]] = {name: [] for name in on}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(service(directory, **settings)) for name, settings in on.items()}
        pools = {name: urllib3.PoolManager() for name in on}
        for _ in range(rounds):
            for name, server in servers.items():
                started = time.perf_counter()
                for _ in range(requests):
                    pools[name].request("GET", f"{server.url}/v1/curves/{key}", timeout=LONG_S)
                took[name].append((time.perf_counter() - started) / requests * 1e6)
    receiver.shutdown()
    return [{"on": name, **spread("us", of, ".0f")} for name, of in took.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--write", action="store_true", help=f"{MEMORY.writes}, with what limits, logs and traces add")
    asked = parser.parse_args()
    run = RunFacts.now()
    with tempfile.TemporaryDirectory(prefix="threadcast-sizes-") as name:
        directory = Path(name)
        learned = make_place(directory)
        cost = costs(directory, learned[0].key, asked.rounds, asked.requests)
        size = sizes(directory, learned)
    print(MEMORY.printed(size), OVERHEADS.printed(cost), sep="\n\n")
    if asked.write:
        MEMORY.store(size, run)
        OVERHEADS.store(cost, run)


if __name__ == "__main__":
    main()
