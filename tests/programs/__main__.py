"""`make test-programs`: the programs of PyTorch's own tests of `torch.compile`, by threadcast and in eager PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from tests.programs.judge import STATUSES, WAYS, Judge, Outcome, Way
from tests.programs.pytorch_tests import SOURCES, Program, Source, programs
from tests.runtime.compiler import HAS_COMPILER
from threadcast.core import read_machine
from threadcast.runtime.engines.executors import Executors

COMMONEST = 12
"""Reasons that the summary names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs asked for; 1 where any is different, 2 without the clone."""
    asked = _parser().parse_args(arguments)
    if not any(_sources(asked)):
        print(f"{asked.pytorch} is no clone of PyTorch's repository: {SOURCES[0].path} is missing", file=sys.stderr)  # noqa: T201
        return 2
    machine = read_machine()
    machine = machine.limited_to([core.id for core in machine.cores[:2]])
    outcomes: list[tuple[Way, Outcome]] = []
    with closing(Executors(machine)) as executors:
        judge = Judge(machine, executors, native=HAS_COMPILER)
        outcomes.extend(_run(judge, asked))
    print(_as_json(outcomes) if asked.json else _as_text(outcomes))  # noqa: T201
    return int(any(outcome.status == "different" for _, outcome in outcomes))


def _run(judge: Judge, asked: argparse.Namespace) -> Iterator[tuple[Way, Outcome]]:
    part, parts = asked.part
    began_s, statuses = time.monotonic(), Counter[str]()
    for done, program in enumerate(islice(_programs(asked), part, None, parts), 1):
        for way in asked.ways or WAYS:
            if asked.verbose:
                print(program.name, way, file=sys.stderr, flush=True)  # noqa: T201
            outcome = judge(program, way)
            statuses[outcome.status] += 1
            yield way, outcome
            if outcome.status == "different":
                print(f"different: {program.name}, {way}\n    {outcome.reason}", file=sys.stderr, flush=True)  # noqa: T201
        if done % 50 == 0:
            so_far = ", ".join(f"{count} {status}" for status, count in statuses.items())
            print(f"{done} programs, {time.monotonic() - began_s:.0f} s: {so_far}", file=sys.stderr, flush=True)  # noqa: T201


def _sources(asked: argparse.Namespace) -> Iterator[Source]:
    return (source for source in SOURCES if (asked.pytorch / source.path).is_file())


def _programs(asked: argparse.Namespace) -> Iterator[Program]:
    for source in _sources(asked):
        yield from programs(asked.pytorch, source, only=asked.only)


def _as_text(outcomes: Sequence[tuple[Way, Outcome]]) -> str:
    """How many programs were right, refused, different, by each way; and the commonest reasons."""
    counts = Counter((way, outcome.status) for way, outcome in outcomes)
    lines = [f"{'way':12}" + "".join(f"{status:>16}" for status in STATUSES)]
    for way in WAYS:
        numbers = [counts[way, status] for status in STATUSES]
        lines += [f"{way:12}" + "".join(f"{number:16}" for number in numbers)] if any(numbers) else []
    for status in ("refused", "different", "PyTorch's own"):
        found = [(way, outcome) for way, outcome in outcomes if outcome.status == status]
        reasons = Counter(
            outcome.reason if status == "refused" else f"{outcome.name}, {way}: {outcome.reason}"
            for way, outcome in found
        )
        lines += [f"\n{status}:"] if reasons else []
        lines += [f"{count:8}  {reason}" for reason, count in reasons.most_common(COMMONEST)]
    return "\n".join(lines)


def _as_json(outcomes: Sequence[tuple[Way, Outcome]]) -> str:
    found = [{"way": way, "program": o.name, "status": o.status, "reason": o.reason} for way, o in outcomes]
    return json.dumps({"summary": Counter(f"{way}: {o.status}" for way, o in outcomes), "programs": found}, indent=1)


def _part(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    return int(number), int(of)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("pytorch", type=Path, help="a clone of PyTorch's repository")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="all of them by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this text in their name")
    parser.add_argument("--part", type=_part, default=(0, 1), metavar="I/N", help="every N-th program from the I-th on")
    parser.add_argument("--verbose", action="store_true", help="name each program before it runs")
    parser.add_argument("--json", action="store_true", help="print every outcome as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
