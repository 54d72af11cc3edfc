"""The sections of docs/figures/shared-machine.md: processes that share cores."""

from __future__ import annotations

from collections import Counter

from figures.study import Row, Study, span, table


def _counted(processes: str) -> str:
    """The names of processes, equal ones once with their number."""
    return " + ".join(f"{count} {name}" for name, count in Counter(processes.split(" + ")).items())


def _sets(rows: list[Row]) -> str:
    head = ["processes", "left alone", "by hand", "threadcast", "over left alone", "of by hand", "slowest"]
    lines = [
        [_counted(row["processes"]), row["left_alone"], row["by_hand"], span(row, "threadcast"), row["over_left_alone"],
         row["of_by_hand"], row["slowest_of_its_part"]]
        for row in rows
    ]  # fmt: skip
    return table(head, lines)


PROCESSES = Study(
    "malleable", "shared-machine",
    ("processes", "rounds", "seconds",
     *(f"{rule}{end}" for rule in ("left_alone", "by_hand", "threadcast") for end in ("", "_low", "_high")),
     "over_left_alone", "of_by_hand", "slowest_of_its_part"), _sets,
)  # fmt: skip


STUDIES = (PROCESSES,)
