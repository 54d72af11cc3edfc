"""Whether random plans over all cores give what eager PyTorch gives: the first part of `benchmarks/many_cores.py`.

Every built-in network, called and trained, by two plans; each further round draws other plans. Between rounds,
PyTorch's own modules have a turn, each in one of its types.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import count

from many_cores_results import Results, Turns

from tests.databases.cases import OPTIMIZERS, Call, Case, Training, spread
from tests.databases.judge import Judge
from tests.runtime.random_engines import RandomEngines
from threadcast import networks
from threadcast.core import Machine
from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.native.library import compiler

PART = "correctness"
FIRST_S = 5.0
"""What the first unit may take: two engines, up to six steps of a tiny network."""


def network_case(name: str, way: str, number: int) -> Case:
    """One built-in network at its smallest size, called or trained; the number draws other plans."""
    return Case("module_db", f"{name} {way} plan {number}", partial(_built, name, way, number))


def _built(name: str, way: str, number: int) -> Call | Training:
    work = networks.load(name, "tiny")
    if way == "call":
        return Call(work.model.eval(), list(work.inputs))
    return Training(work.model, OPTIMIZERS[number % len(OPTIMIZERS)], list(work.inputs))


def all_cases() -> Iterator[Case]:
    """Rounds without an end: all networks, and PyTorch's modules after the first round."""
    for number in count():
        yield from (network_case(name, way, number) for name in networks.names() for way in ("call", "train"))
        if number == 0:
            yield from spread("module_db")


def has_compiler() -> bool:
    """Whether the native engine can be compiled here."""
    try:
        return bool(compiler())
    except ExecutionError:
        return False


def run(results: Results, machine: Machine, end_s: float) -> None:
    """Judge case after case until the time is up; those that have a result already are left out."""
    warnings.simplefilter("ignore")
    turns, done = Turns(end_s, FIRST_S), {line["key"] for line in results.read() if line["part"] == PART}
    for case in all_cases():
        if case.name in done:
            continue
        if not turns.next():
            return
        print(case.name, file=sys.stderr, flush=True)  # the last one, should it hang or crash
        outcome = Judge(RandomEngines(machine, all_lanes=True))(case)
        if outcome is not None:
            results.add(PART, case.name, status=outcome.status, reason=outcome.reason)
