"""How many samples a second a store and a service take, and how long reads take, from 10^5 to 10^8 stored samples.

    .venv/bin/python benchmarks/ingest.py [--samples 100000000] [--databases sqlite postgresql] [--write]

Prints the tables, and with --write stores them. Databases are made anew, with durable commits, and deleted at the
end. Half an hour and 10 GB of disk; --samples 10000000 ends at smaller stores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, cycle, islice, repeat
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import urllib3
from figures.service import INGEST
from ingest_place import (
    CASES,
    DATABASES,
    FLEET,
    MACHINES,
    PER_OP,
    PRODUCTS,
    SAMPLES,
    database,
    fill,
    measured,
    pairs_at,
    size_on_disk,
)
from run_facts import RunFacts
from service_place import Server

from threadcast.core import Measurement
from threadcast.core.measurement_documents import measurement_document
from threadcast.models.registry import ModelRegistry
from threadcast.models.roofline import Roofline
from threadcast.store import Store
from threadcast.store.paging import MeasurementFilter

SIZES = tuple(10**n for n in range(5, 9))
CONNECTIONS = 4
CHANGING = "the same, each a change"
WAYS = {
    "store, 8,000 samples": (100, CASES, SAMPLES), "store, 80 samples": (1, CASES, SAMPLES),
    "store, 1,000 measurements of 1 sample": (1_000, 1, 1), CHANGING: (1_000, 1, 1),
}  # fmt: skip
"""By name: pairs of machine and op in a transaction, cases of each, and samples of each case."""
SENT = {"HTTP, 8,000 samples": 100, "HTTP, 80 samples": 1}
"""By name: pairs of machine and op in a request."""


@dataclass(slots=True)
class Found:
    """What was measured on one database at one size."""

    database: str
    samples: int
    bytes: int
    rates: dict[str, float] = field(default_factory=dict)
    slowest_s: dict[str, float] = field(default_factory=dict)
    reads_s: dict[str, float] = field(default_factory=dict)


def batches(size: int, way: tuple[int, int, int], seed: int, *, changing: bool = False) -> Iterator[list[Measurement]]:
    """Transactions of pairs drawn at random among those that the store knows; if `changing`, no op takes as long as
    before."""
    random = np.random.default_rng(seed)
    pairs, cases, samples = way
    for turn in count(1):
        drawn = random.integers(0, pairs_at(size), pairs).tolist()
        factors = random.lognormal(0, 1.5, pairs).tolist() if changing else [1.0] * pairs
        yield [
            m
            for pair, factor in zip(drawn, factors, strict=True)
            for m in measured(pair, random, cases=cases, samples=samples, since_s=60 * turn, factor=factor)
        ]


def turns(work: Callable[[Any], object], seconds: float, given: Iterator[Any]) -> list[float]:
    """How long each turn of `work` took with what is `given`; at least 20 turns, and at least so many seconds."""
    took: list[float] = []
    while len(took) < 20 or sum(took) < seconds:
        given_now = next(given)
        started_s = time.perf_counter()
        work(given_now)
        took.append(time.perf_counter() - started_s)
    return took


def through_the_store(url: str, size: int, seconds: float, found: Found) -> None:
    """Rates of transactions one after the other."""
    with Store.open(url) as store:
        for name, way in WAYS.items():
            made = batches(size, way, seed=size, changing=name == CHANGING)
            took = turns(store.add, seconds, made)
            samples = way[0] * way[1] * way[2]
            found.rates[name], found.slowest_s[name] = samples / mean(took), max(took)


def sending(url: str, bodies: list[bytes], seconds: float) -> list[float]:
    """How long each request of one client took, who sends these bodies by turns."""
    http = urllib3.PoolManager()
    headers = {"Content-Type": "application/json"}

    def send(body: bytes) -> None:
        answer = http.request("POST", f"{url}/v1/measurements", body=body, headers=headers, retries=False)
        assert answer.status == 201, answer.data

    return turns(send, seconds, cycle(bodies))


def through_http(url: str, size: int, seconds: float, found: Found, place: Path) -> None:
    """Rates of requests over some connections at once."""
    server = Server(
        [sys.executable, "-c", "from threadcast.cli.main import main; main()", "serve", "--port", "0"], place,
        THREADCAST_STORE=url, THREADCAST_MODELS=str(place / "models"),
    )  # fmt: skip
    try:
        for name, pairs in SENT.items():
            made = batches(size, (pairs, CASES, SAMPLES), seed=size + 1)
            ready = islice(made, 2_000 // pairs + 20 * CONNECTIONS)  # more would be sent again
            bodies = [json.dumps({"measurements": list(map(measurement_document, some))}).encode() for some in ready]
            with ThreadPoolExecutor(CONNECTIONS) as clients:
                took = [
                    clients.submit(sending, server.url, bodies[n::CONNECTIONS], seconds) for n in range(CONNECTIONS)
                ]
                each = [s for of_one in took for s in of_one.result()]
            found.rates[name] = CONNECTIONS * pairs * PER_OP / mean(each)
            found.slowest_s[name] = max(each)
    finally:
        server.stop()


def reads(url: str, size: int, found: Found) -> None:
    """Medians of what pages and forecasts read."""
    random = np.random.default_rng(size)
    machine = FLEET[0].fingerprint
    with Store.open(url) as store:
        last = store.last_measurement()

        def op() -> str:
            return PRODUCTS[int(random.integers(0, max(pairs_at(size) // MACHINES, 1)))].key

        asked: dict[str, Callable[[], object]] = {
            "page of all, first": lambda: store.page(MeasurementFilter(), limit=100),
            "page of all, from the middle": lambda: store.page(MeasurementFilter(), after=last // 2, limit=100),
            "page of a machine, from the middle": lambda: store.page(
                MeasurementFilter(machine), after=last // 2, limit=100
            ),
            "page of an op": lambda: store.page(MeasurementFilter(op=op()), limit=100),
            "page of an op on a machine": lambda: store.page(MeasurementFilter(machine, op()), limit=100),
            "all samples of an op on a machine": lambda: store.measurements(machine=machine, keys=[op()]),
            "what is stored (`threadcast db info`)": store.counts,
        }
        for name, ask in asked.items():
            found.reads_s[name] = median(turns(lambda _, ask=ask: ask(), 0.0, repeat(None)))


def rows_of(found: Found) -> Iterator[dict[str, object]]:
    """The rows of data/studies/ingest.csv of one database and size."""
    measures = {
        "samples_per_s": {name: f"{rate:.0f}" for name, rate in found.rates.items()},
        "slowest_ms": {name: f"{seconds * 1e3:.0f}" for name, seconds in found.slowest_s.items()},
        "read_ms": {name: f"{seconds * 1e3:.1f}" for name, seconds in found.reads_s.items()},
        "gb": {"on disk": f"{found.bytes / 1e9:.2f}"},
    }
    for measure, values in measures.items():
        for what, value in values.items():
            yield {
                "database": found.database,
                "stored": found.samples,
                "measure": measure,
                "what": what,
                "value": value,
            }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SIZES[-1], help="largest store")
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=DATABASES)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    parser.add_argument("--write", action="store_true", help=INGEST.writes)
    given = parser.parse_args()
    run, every = RunFacts.now(), []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = Path(folder)
        urls = {kind: stack.enter_context(database(kind, place)) for kind in given.databases}
        registry = ModelRegistry(place / "models")
        some = [m for pair in range(0, 400, 10) for m in measured(pair, np.random.default_rng(pair))]
        registry.set_alias("champion", registry.save(Roofline().fit(some), trained_on={}, metrics={}))
        have = dict.fromkeys(urls, 0)
        for size in [size for size in SIZES if size <= given.samples]:
            for kind, url in urls.items():
                have[kind] = fill(url, have[kind], size)
                with Store.open(url) as store:
                    found = Found(kind, store.counts().samples, size_on_disk(url))
                through_the_store(url, size, given.seconds, found)
                through_http(url, size, given.seconds, found, place)
                reads(url, size, found)
                print(found, flush=True)
                every += rows_of(found)
                if given.write:
                    INGEST.store(every, run)  # each size, as a full disk may end it
    print(INGEST.printed(every))


if __name__ == "__main__":
    main()
