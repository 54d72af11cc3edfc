"""Throughput and latency of the service beside a bare Flask echo and MLflow: `make bench-service` runs this.

    python benchmarks/service.py [--rounds 5] [--seconds 4] [--write] [--soak MINUTES [--database postgresql]]

Servers run side by side, idle but for the one that a second process loads over loopback with 8 connections; each round
loads each of them once, by turns. Ratios are those of a round. --soak does `service_soak.py` in place of this.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import urllib3
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, ops, service
from service_rivals import FEATURES, mlflow_python
from service_soak import soak, with_section

from threadcast.prediction.arrow_curves import MEDIA_TYPE
from threadcast.scheduler.compile_planner import compile_planner

PAGE = Path(__file__).parents[1] / "docs" / "service-tables.md"
SOAK_PAGE = PAGE.with_name("service-soak.md")
HERE = Path(__file__).parent
CONNECTIONS, THREADS = 8, 16
MANY_OPS = 10_000
MOST_NEW = 500
HEAD = """# The service's speed

`make bench-service`, {run}. One worker process with {threads}
threads; a second process on the same machine loads it over loopback with {connections} connections, each of which
sends its next request when the last one is answered. Medians of {rounds} rounds of {seconds:g} s, servers by turns;
ratios are those of a round (least to most). One op's curve has {cases} points, each with its interval and source.

| what | requests/s | of bare Flask on the same server | of bare Flask on gthread | p50 | p99 |
|---|---|---|---|---|---|
"""


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

    def line(self, *echoes: Row) -> str:
        """The row of the table."""
        shares = " | ".join(_spread(self.over(echo)) for echo in echoes)
        p50, p99 = median(self.p50_ms), median(self.p99_ms)
        return f"| {self.name} | {median(self.per_s):.0f} | {shares} | {p50:.2f} ms | {p99:.2f} ms |"

    def over(self, other: Row) -> list[float]:
        """How many times as many requests a second as the other, round by round."""
        return [own / others for own, others in zip(self.per_s, other.per_s, strict=True)]


def _spread(found: list[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


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
    command = [sys.executable, str(HERE / "service_rivals.py"), "echo", str(THREADS), str(answer_bytes), *more]
    server = Server(command, directory)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def mlflow(directory: Path) -> Iterator[Row | str]:
    """MLflow's scoring server with its row; or why there is none."""
    python, why = mlflow_python()
    if python is None:
        yield why
        return
    subprocess.run([str(python), str(HERE / "service_rivals.py"), "mlflow-model", str(directory / "model")], check=True)
    port, model = 18_321, str(directory / "model")
    command = [str(python), "-m", "mlflow", "models", "serve", "-m", model, "-p", str(port), "--env-manager", "local"]
    log = (directory / "mlflow.log").open("w")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # it starts uvicorn by its name
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        if not wait_for(lambda: process.poll() is not None or answers(f"{url}/ping")) or process.poll() is not None:
            yield f"it did not start: {(directory / 'mlflow.log').read_text()[-200:]}"
            return
        body = {"inputs": [[0.5] * FEATURES] * len(MACHINE.cases())}
        yield Row("MLflow, XGBoost of 200 trees, as many rows", url, [request("/invocations", body)])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        log.close()


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Whether it holds in time."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.2)
    return False


def answers(url: str) -> bool:
    """Whether it answers 200."""
    try:
        return urllib3.request("GET", url, retries=False, timeout=2).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def many(url: str, rounds: int) -> list[str]:
    """Lines about one request for the curves of 10,000 ops that were not measured, in each form of the answer."""
    body = json.dumps({"ops": [op.to_json() for op in ops(MANY_OPS, seed=7)]}).encode()
    taken: dict[str, list[float]] = {"JSON": [], "Arrow": []}
    sizes = {}
    for _ in range(rounds + 1):  # the first is not counted
        for name, form in (("JSON", "application/json"), ("Arrow", MEDIA_TYPE)):
            headers = {"Content-Type": "application/json", "Accept": form}
            started = time.perf_counter()
            answer = urllib3.request("POST", f"{url}/v1/predictions", body=body, headers=headers, retries=False)
            taken[name].append(time.perf_counter() - started)
            if answer.status != 200:
                raise SystemExit(f"10,000 ops: {answer.status} {answer.data[:200]!r}")
            sizes[name] = len(answer.data)
    points = MANY_OPS * len(MACHINE.cases())
    return [
        f"- {name}: {_spread(seconds[1:])} s, {sizes[name] / 1e6:.0f} MB: "
        f"{points / median(seconds[1:]) / 1e6:.2f} million predicted points a second"
        for name, seconds in taken.items()
    ]


def measure(rounds: int, seconds: float) -> str:
    """The page."""
    run = RunFacts.now()
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
        rival = stack.enter_context(mlflow(directory))
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
            *([rival] if isinstance(rival, Row) else []),
        ]
        for op in learned:
            urllib3.request("GET", f"{ours.url}/v1/curves/{op.key}", retries=False)
        for _ in range(rounds):
            for row in rows:
                row.run(directory, seconds)
        tables = many(ours.url, rounds)
    lines = [row.line(*rows[:2]) for row in rows]
    if isinstance(rival, str):
        lines.append(f"| MLflow | not measured: {rival} | | | | |")
    else:
        lines.append("")
        times = [median(row.over(rival)) for row in rows[2:4]]
        lines.append(
            f"Kept curves are answered {times[0]:.1f} times as often as MLflow's rows, computed ones {times[1]:.1f}."
        )
    lines.append("")
    lines.append(
        f"{MANY_OPS:,} ops, sent in full, at {len(MACHINE.cases())} cases in one request, from request to answer:"
    )
    lines += ["", *tables]
    head = HEAD.format(
        run=run, threads=THREADS, connections=CONNECTIONS, rounds=rounds,
        seconds=seconds, cases=len(MACHINE.cases()),
    )  # fmt: skip
    return head + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write", action="store_true", help="to docs/service-tables.md, or service-soak.md")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="mixed load with reloads, retraining and kills")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="of the soak")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    if asked.soak:
        section, wrong = soak(asked.soak * 60, asked.database)
        print(section)
        if asked.write:
            SOAK_PAGE.write_text(with_section(SOAK_PAGE.read_text() if SOAK_PAGE.exists() else "", section))
        return wrong
    page = measure(asked.rounds, asked.seconds)
    print(page)
    if asked.write:
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
