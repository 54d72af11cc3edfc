"""Golden sets: ops that are kept for judging, by which no alias may get worse when it moves by itself.

Every comparison with held-out ops allows a difference that medians of few samples cannot show, and what it judges by
goes where retention and new measurements take it. So a long row of promotions could forget a machine, or get worse by
one per cent each time. A golden set does not forget: its ops stay, also when the store does not have them any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.atomic_file import replacing
from threadcast.core.errors import FormatError
from threadcast.core.json_reading import check_schema, member, parse
from threadcast.models.base import PerformanceModel
from threadcast.models.evaluation import judge_together
from threadcast.models.judgement import Row
from threadcast.models.measured import MeasuredOp, by_machine

SCHEMA = "threadcast.golden/1"
WHOLE = ""
"""The name of the whole set among its parts, which are machines."""

MACHINE_SLACK = 0.01
"""Largest loss of accuracy on one machine's part of the set. Without any, one of many machines would always forbid a
promotion; with it, a candidate that forgot a machine loses tenths."""

MOST_OPS = 1000
"""Most ops of a golden set, each counted once a machine: judging two models by so many takes seconds."""


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """Ops on machines with the time of each case, in the order in which they were taken in."""

    entries: tuple[MeasuredOp, ...] = ()

    def renewed(self, held_out: Iterable[MeasuredOp], *, take_in: bool = True) -> GoldenSet:
        """The set with the times that hold now: those of `held_out` replace older ones of the same cases.

        Ops of `held_out` that are not in the set are taken in (`take_in`) while there are fewer than `MOST_OPS`. None
        is dropped.
        """
        kept = {(entry.op.key, entry.machine.fingerprint): entry for entry in self.entries}
        for entry in held_out:
            key = (entry.op.key, entry.machine.fingerprint)
            before = kept.get(key)
            if before is None and not (take_in and len(kept) < MOST_OPS):
                continue
            earlier = {} if before is None else before.by_case
            medians = {case: _median(measured) for case, measured in entry.by_case.items()}
            kept[key] = MeasuredOp(entry.op, entry.machine, {**earlier, **medians})
        return GoldenSet(tuple(kept.values()))

    def without_stale(self, entries: Iterable[MeasuredOp]) -> GoldenSet:
        """The set without the cases of which `entries` say that the machine has changed since they were measured."""
        stale = {
            (entry.op.key, entry.machine.fingerprint, case)
            for entry in entries for case, measured in entry.by_case.items() if measured.stale
        }  # fmt: skip
        left = []
        for entry in self.entries:
            place = entry.op.key, entry.machine.fingerprint
            left.append(replace(entry, by_case={c: m for c, m in entry.by_case.items() if (*place, c) not in stale}))
        return GoldenSet(tuple(entry for entry in left if entry.by_case))

    def to_json(self) -> dict[str, Any]:
        """The document of schema `threadcast.golden/1`."""
        machines = {entry.machine.fingerprint: entry.machine for entry in self.entries}
        ops = {entry.op.key: entry.op for entry in self.entries}
        places = {name: at for at, name in enumerate(machines)}, {key: at for at, key in enumerate(ops)}
        return {
            "schema": SCHEMA,
            "machines": [machine.to_json() for machine in machines.values()],
            "ops": [op.to_json() for op in ops.values()],
            "times": [
                [places[0][entry.machine.fingerprint], places[1][entry.op.key], case.threads, case.affinity.value,
                 measured.seconds]
                for entry in self.entries for case, measured in entry.by_case.items()
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, document: Any) -> GoldenSet:
        """Read what `to_json` writes; FormatError on anything else."""
        check_schema(document, SCHEMA)
        machines = [Machine.from_json(one) for one in member(document, "machines", list)]
        ops = [Op.from_json(one) for one in member(document, "ops", list)]
        found: dict[tuple[int, int], dict[Case, Measurement]] = {}
        for row in member(document, "times", list):
            try:
                machine, op, threads, affinity, seconds = row
                case = Case(threads, affinity)
                measured = Measurement(ops[op], machines[machine], case, (Sample(seconds),))
            except (ValueError, TypeError, IndexError) as error:
                raise FormatError(
                    f"{row!r} is not [machine, op, threads, affinity, seconds]", pointer="/times"
                ) from error
            found.setdefault((op, machine), {})[case] = measured
        return cls(tuple(MeasuredOp(ops[op], machines[at], cases) for (op, at), cases in found.items()))


def read_golden_set(path: Path) -> GoldenSet:
    """The golden set in a file; empty where there is none. FormatError for a damaged one."""
    return GoldenSet.from_json(parse(path.read_bytes(), what=str(path))) if path.exists() else GoldenSet()


def write_golden_set(path: Path, golden: GoldenSet) -> None:
    """Put a golden set in the place of the one in the file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(json.dumps(golden.to_json()) + "\n", encoding="utf-8")


def golden_rows(
    champion: PerformanceModel, candidate: PerformanceModel, golden: GoldenSet
) -> dict[str, tuple[Row, Row]]:
    """The scores of both models by the same points: over the whole set (""), and by the fingerprint of the machine."""
    found = {}
    for name, entries in {WHOLE: list(golden.entries), **by_machine(golden.entries)}.items():
        old, new = judge_together([champion, candidate], entries, split_name="golden")
        found[name] = old, new
    return found


def lowered(rows: Mapping[str, tuple[Row, Row]]) -> list[str]:
    """Parts of the golden set by which the candidate is worse: it forecasts fewer ops, or with less accuracy.

    The whole set allows no difference, a machine's part one of `MACHINE_SLACK`.
    """
    return [name for name, (old, new) in rows.items() if _is_lower(old, new, 0.0 if name == WHOLE else MACHINE_SLACK)]


def _is_lower(champion: Row, candidate: Row, slack: float) -> bool:
    if candidate.unusable > champion.unusable:
        return True
    return None not in (champion.accuracy, candidate.accuracy) and (
        (candidate.accuracy or 0.0) < (champion.accuracy or 0.0) - slack
    )


def _median(measured: Measurement) -> Measurement:
    return Measurement(measured.op, measured.machine, measured.case, (Sample(measured.seconds),))
