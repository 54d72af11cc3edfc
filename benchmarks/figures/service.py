"""The sections of docs/figures/service.md: requests, large tables, servers, minutes of everything."""

from __future__ import annotations

from figures.study import Row, Study, by, span, table


def _ranged(column: str) -> tuple[str, ...]:
    return column, f"{column}_low", f"{column}_high"


def _requests(rows: list[Row]) -> str:
    lines, machines = [], list(dict.fromkeys(row["machine"] for row in rows))
    for (what,), found in by(rows, "what").items():
        own = {row["machine"]: row for row in found}
        cells = (own.get(machine, {}) for machine in machines)
        lines.append(
            [what, *(row.get(column, "") for row in cells for column in ("per_s", "of_same_server", "p99_ms"))]
        )
    head = [f"{what}, {machine}" for machine in machines for what in ("requests/s", "of bare Flask", "p99, ms")]
    return table(["what", *head], lines)


REQUESTS = Study(
    "service_requests", "service",
    ("machine", "what", "per_s", *_ranged("of_same_server"), *_ranged("of_gthread"), "p50_ms", "p99_ms"), _requests,
)  # fmt: skip


def _batches(rows: list[Row]) -> str:
    lines = [[row["machine"], row["answer"], row["mb"], span(row, "seconds"), row["model_s"], row["write_s"],
              row["million_points_per_s"]] for row in rows if row["model_s"]]  # fmt: skip
    return table(["machine", "answer", "MB", "seconds", "model", "write", "million points/s"], lines)


BATCHES = Study(
    "service_batches", "service",
    ("machine", "answer", "mb", *_ranged("seconds"), "model_s", "write_s", "million_points_per_s"), _batches,
)  # fmt: skip


HOLDING = {
    "part_of_a_head": "part of a head", "part_of_a_body": "part of a body", "part_of_a_chunk": "part of a chunk",
    "unread_answers": "unread answers", "connections_900": "900 connections",
}  # fmt: skip
"""Columns of attacks, and how they are called."""


def _servers(rows: list[Row]) -> str:
    lines = [
        [row["server"], ", ".join(said for name, said in HOLDING.items() if row[name] != "served") or "none",
         *(row[column] for column in ("trickle", "accepted", "differ", "lost"))]
        for row in rows
    ]  # fmt: skip
    return table(["server", "not served during", "trickle", "accepted", "differ", "lost"], lines)


SERVERS = Study(
    "http_servers", "service", ("server", *HOLDING, "trickle", "accepted", "differ", "differs_with", "lost"), _servers
)


def _loads(rows: list[Row]) -> str:
    return table(["server", "echoes/s"], ([row["server"], span(row, "echoes_per_s")] for row in rows))


LOADS = Study("http_server_loads", "service", ("server", *_ranged("echoes_per_s")), _loads, SERVERS)


STUDIES = (REQUESTS, BATCHES, SERVERS, LOADS)
