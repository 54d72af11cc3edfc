"""`python -m tests.databases`: every case of PyTorch's databases; progress on stderr, a table or JSON on stdout."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from tests.databases.cases import DATABASES, Case, cases, spread
from tests.databases.judge import Judge
from tests.outcomes import Outcome, Status, commonest_reasons, part
from tests.runtime.random_engines import random_engines

STATUSES: tuple[Status, ...] = ("right", "refused", "different", "eager cannot")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases asked for; 1 where any is different."""
    asked = _parser().parse_args(arguments)
    outcomes: list[tuple[Case, Outcome]] = []
    with random_engines(asked.cores) as engines:
        judge = Judge(engines)
        for database in asked.database or DATABASES:
            found = spread(database) if asked.spread else cases(database, samples=asked.samples)
            first, every = asked.part
            chosen = [case for case in islice(found, first, None, every) if asked.only in case.name]
            outcomes += _run(judge, database, chosen)
    print(_as_json(outcomes) if asked.json else _as_text(outcomes))  # noqa: T201
    return int(any(outcome.status == "different" for _, outcome in outcomes))


def _run(judge: Judge, database: str, chosen: Sequence[Case]) -> list[tuple[Case, Outcome]]:
    outcomes: list[tuple[Case, Outcome]] = []
    began_s = time.monotonic()
    width = shutil.get_terminal_size().columns - 1
    for number, case in enumerate(chosen, 1):
        if sys.stderr.isatty():
            line = f"{database} {number}/{len(chosen)} {case.name}"
            sys.stderr.write(f"\r{line[:width].ljust(width)}")
        outcome = judge(case)
        outcomes += [(case, outcome)] if outcome is not None else []
        if outcome is not None and outcome.status == "different":
            sys.stderr.write(f"\r{'different: ' + case.name:<{width}}\n    {outcome.reason}\n")
        if not sys.stderr.isatty() and number % 200 == 0:
            sys.stderr.write(f"{database} {number}/{len(chosen)} {time.monotonic() - began_s:.0f} s\n")
    sys.stderr.write(f"\r{database}: {len(outcomes)} cases, {time.monotonic() - began_s:.0f} s".ljust(width) + "\n")
    return outcomes


def _as_text(outcomes: Sequence[tuple[Case, Outcome]]) -> str:
    """How many cases of each database and kind were right, refused, different; and the commonest reasons."""
    counts = Counter((*_row(case), outcome.status) for case, outcome in outcomes)
    rows = sorted({key[:2] for key in counts})
    lines = [f"{'database':12}{'what':10}" + "".join(f"{status:>14}" for status in STATUSES)]
    for row in rows:
        numbers = "".join(f"{counts[(*row, status)]:14}" for status in STATUSES)
        lines.append(f"{row[0]:12}{row[1]:10}{numbers}")
    total = Counter(outcome.status for _, outcome in outcomes)
    lines.append(f"{'all':22}" + "".join(f"{total[status]:14}" for status in STATUSES))
    return "\n".join([*lines, *commonest_reasons([(case.name, outcome) for case, outcome in outcomes])])


def _as_json(outcomes: Sequence[tuple[Case, Outcome]]) -> str:
    found = [{"database": case.database, "case": o.name, "status": o.status, "reason": o.reason}
             for case, o in outcomes]  # fmt: skip
    return json.dumps({"summary": Counter(o.status for _, o in outcomes), "cases": found}, indent=1)


def _row(case: Case) -> tuple[str, str]:
    """The database and, of operators and modules, whether they are called or trained."""
    return case.database, "train" if case.database == "optim_db" else case.name.split()[1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.databases", description=__doc__)
    parser.add_argument("database", nargs="*", choices=[*DATABASES, []], help="all of them by default")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this text in their name")
    parser.add_argument("--samples", type=int, default=4, help="examples of each entry and type (%(default)s)")
    parser.add_argument("--part", type=part, default=(0, 1), metavar="I/N", help="every N-th case from the I-th on")
    parser.add_argument("--spread", action="store_true", help="the part that `make test` runs")
    parser.add_argument("--cores", type=int, default=2, help="cores that plans use (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print every outcome as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
