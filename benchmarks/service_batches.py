"""How fast the service answers large tables, as JSON and as Arrow, and whether the client keeps its deadline with them.

    python benchmarks/service_batches.py [--rounds 7] [--write]

One worker process, asked from another process on the same machine. Half a minute.
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
from figures.service import BATCHES, DEADLINES
from figures.study import spread
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, ops, service

from threadcast.prediction.arrow_curves import MEDIA_TYPE
from threadcast.prediction.remote import RemotePredictor

MANY_OPS, DEADLINE_S = 10_000, 1.0


def batch(server: Server, form: str, rounds: int) -> dict[str, object]:
    """The figures of one form."""
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
    return {
        "answer": "Arrow" if form == MEDIA_TYPE else "JSON", "mb": f"{size / 1e6:.0f}", **spread("seconds", taken),
        "model_s": f"{model_s:.2f}", "write_s": f"{write_s:.3f}",
        "million_points_per_s": f"{points / median(taken) / 1e6:.2f}",
    }  # fmt: skip


def client(url: str, rounds: int) -> dict[str, object]:
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
    return {**spread("seconds", taken), "answered_by": named}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=f"{BATCHES.writes}, with the client's deadline")
    asked = parser.parse_args()
    run = RunFacts.now()
    with tempfile.TemporaryDirectory(prefix="threadcast-batches-") as name:
        directory = Path(name)
        make_place(directory)
        with service(directory) as server:
            rows = [batch(server, form, asked.rounds) for form in ("application/json", MEDIA_TYPE)]
            here, url = client(server.url, asked.rounds), server.url
        gone = client(url, asked.rounds)
    rows = [{"machine": run.machine, **row} for row in rows]
    waited = [{"machine": run.machine, "service": where, **row} for where, row in (("there", here), ("gone", gone))]
    print(BATCHES.printed(rows), DEADLINES.printed(waited), sep="\n\n")
    if asked.write:
        BATCHES.store(rows, run, replaces=("machine",))
        DEADLINES.store(waited, run, replaces=("machine",))


if __name__ == "__main__":
    main()
