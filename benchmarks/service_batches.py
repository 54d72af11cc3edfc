"""How fast the service answers large tables, as JSON and as Arrow, and whether the client keeps its deadline with them.

python benchmarks/service_batches.py [--rounds 7] [--write]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from statistics import median

import urllib3
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, ops, service

from threadcast.prediction.arrow_curves import MEDIA_TYPE
from threadcast.prediction.remote import RemotePredictor

PAGE = Path(__file__).parents[1] / "docs/service-batch-tables.md"
MANY_OPS, DEADLINE_S = 10_000, 1.0
HEAD = """# Large tables over HTTP

`make bench-service-batches`, {run}.
One worker process; {ops:,} ops that were not measured, sent in full, at {cases} cases in one request from another
process on the same machine, on which other work went on, too. Medians of {rounds} requests, least to most. *Model* and
*write* are the service's own times of these parts.

| answer | MB | seconds | model | write | million points/s |
|---|---|---|---|---|---|
"""


def batch(server: Server, form: str, rounds: int) -> str:
    """The row of one form."""
    body = json.dumps({"ops": [op.to_json() for op in ops(MANY_OPS, seed=7)]}).encode()
    headers = {"Content-Type": "application/json", "Accept": form}
    taken, parts, size = [], [], 0
    for _ in range(rounds):
        started = time.perf_counter()
        answer = urllib3.request("POST", f"{server.url}/v1/predictions", body=body, headers=headers, retries=False)
        taken.append(time.perf_counter() - started)
        if answer.status != 200:
            raise SystemExit(f"{form}: {answer.status} {answer.data[:200]!r}")
        parts.append(
            {n: float(ms) / 1e3 for n, ms in re.findall(r"(\w+);dur=([\d.]+)", answer.headers["Server-Timing"])}
        )
        size = len(answer.data)
    model_s, write_s = (median(part[name] for part in parts) for name in ("model", "write"))
    points = MANY_OPS * len(MACHINE.cases())
    return (
        f"| {'Arrow' if form == MEDIA_TYPE else 'JSON'} | {size / 1e6:.0f} | {median(taken):.2f} ({min(taken):.2f} to "
        f"{max(taken):.2f}) | {model_s:.2f} | {write_s:.3f} | {points / median(taken) / 1e6:.2f} |"
    )


def client(url: str, rounds: int) -> str:
    """How long the client takes for as many ops with a deadline, and where its tables came from."""
    taken, sources = [], []
    for seed in range(rounds):
        many = ops(MANY_OPS, seed=100 + seed)
        with RemotePredictor(url, MACHINE, deadline_s=DEADLINE_S) as remote:
            started = time.perf_counter()
            remote.curves(many)
            taken.append(time.perf_counter() - started)
            sources.append(remote.status.source_of_curves)
    named = ", ".join(f"{sources.count(source)} by {source}" for source in sorted(set(sources)))
    return f"{median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f}), {named}"


def measure(rounds: int) -> str:
    """The page."""
    run = RunFacts.now()
    with tempfile.TemporaryDirectory(prefix="threadcast-batches-") as name:
        directory = Path(name)
        make_place(directory)
        with service(directory) as server:
            rows = [batch(server, form, rounds) for form in ("application/json", MEDIA_TYPE)]
            here, url = client(server.url, rounds), server.url
        gone = client(url, rounds)
    head = HEAD.format(run=run, ops=MANY_OPS, cases=len(MACHINE.cases()), rounds=rounds)
    tail = f"""
`RemotePredictor` with a deadline of {DEADLINE_S:g} s, asked for as many new ops at once: {here}.
With no service there: {gone}.
"""
    return head + "\n".join(rows) + "\n" + tail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="to docs/service-batch-tables.md")
    asked = parser.parse_args()
    page = measure(asked.rounds)
    print(page)
    if asked.write:
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
