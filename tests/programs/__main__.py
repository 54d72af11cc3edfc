"""`python -m tests.programs`: the programs of PyTorch's own tests of `torch.compile`, beside eager PyTorch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tests.outcomes import STATUSES, Outcome, commonest_reasons, part
from tests.programs.judge import WAYS, Judge, Way
from tests.programs.pytorch_tests import SOURCES, Program, Source, programs
from tests.runtime.random_engines import random_engines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs asked for; 1 where any is different, 2 without the clone."""
    asked = _parser().parse_args(arguments)
    if not any(_sources(asked)):
        print(f"{asked.pytorch} is no clone of PyTorch's repository: {SOURCES[0].path} is missing", file=sys.stderr)  # noqa: T201
        return 2
    outcomes: list[tuple[Way, Outcome]] = []
    with random_engines(2) as engines:
        outcomes.extend(_run(Judge(engines), asked))
    print(_as_json(outcomes) if asked.json else _as_text(outcomes))  # noqa: T201
    return int(any(outcome.status == "different" for _, outcome in outcomes))


def _run(judge: Judge, asked: argparse.Namespace) -> Iterator[tuple[Way, Outcome]]:
    first, every = asked.part
    began_s, statuses = time.monotonic(), Counter[str]()
    for done, program in enumerate(islice(_programs(asked), first, None, every), 1):
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
    return "\n".join([*lines, *commonest_reasons([(f"{outcome.name}, {way}", outcome) for way, outcome in outcomes])])


def _as_json(outcomes: Sequence[tuple[Way, Outcome]]) -> str:
    found = [{"way": way, "program": o.name, "status": o.status, "reason": o.reason} for way, o in outcomes]
    return json.dumps({"summary": Counter(f"{way}: {o.status}" for way, o in outcomes), "programs": found}, indent=1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("pytorch", type=Path, help="a clone of PyTorch's repository")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="all of them by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs with this text in their name")
    parser.add_argument("--part", type=part, default=(0, 1), metavar="I/N", help="every N-th program from the I-th on")
    parser.add_argument("--verbose", action="store_true", help="name each program before it runs")
    parser.add_argument("--json", action="store_true", help="print every outcome as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
