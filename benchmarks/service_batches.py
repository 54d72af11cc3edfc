"""How fast the service answers large tables, as JSON and as Arrow.

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
from figures.service import BATCHES
from figures.study import spread
from run_facts import RunFacts
from service_place import MACHINE, Server, make_place, ops, service

from threadcast.prediction.arrow_curves import MEDIA_TYPE

MANY_OPS = 10_000


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", action="store_true", help=BATCHES.writes)
    asked = parser.parse_args()
    run = RunFacts.now()
    with tempfile.TemporaryDirectory(prefix="threadcast-batches-") as name:
        directory = Path(name)
        make_place(directory)
        with service(directory) as server:
            rows = [batch(server, form, asked.rounds) for form in ("application/json", MEDIA_TYPE)]
    rows = [{"machine": run.machine, **row} for row in rows]
    print(BATCHES.printed(rows))
    if asked.write:
        BATCHES.store(rows, run, replaces=("machine",))


if __name__ == "__main__":
    main()
