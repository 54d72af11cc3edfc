"""Finds which columns of a table describe its ops, by which of them its rows are told apart, not by their names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

from threadcast.core.errors import FormatError

_CURVES = 1.5
"""Numbers of threads an op, on average, above which ops are taken to be told apart well. It only chooses which columns
a message names, and whether what the user says is enough."""


def results_among(
    columns: Mapping[str, Sequence[Hashable]], *, ops: Sequence[Hashable], where: Sequence[Hashable],
    threads: Sequence[int], labelled: bool, said: bool,
) -> list[str]:  # fmt: skip
    """Those of `columns` that describe no op, but came of running it, such as speed-ups; each with one value a row.

    `ops` (what surely tells ops apart), `where` (machine and placement) and `threads` have one value a row, too. A
    column that all these and the other columns determine is not needed to tell rows apart; that with most values is
    left out first. What is left out and constant within each op describes it all the same; the rest are results.
    `labelled` says whether `ops` are of a column, `said` whether the user has said any column that describes ops; where
    that leaves few ops with several numbers of threads, the user knows it, and all columns describe ops.

    FormatError where a column may be either: all ops by all columns have one number of threads, nothing but threads
    would tell rows apart, or it has texts, which may be of another machine or library.
    """
    values = {name: len(set(cells)) for name, cells in columns.items()}
    names = [name for name in columns if values[name] > 1]
    by_values = sorted(names, key=lambda name: (values[name], names.index(name)), reverse=True)

    def different(*cells: Sequence[Hashable]) -> int:
        return len(set(zip(*cells)))

    def of(kept: Iterable[str]) -> list[Sequence[Hashable]]:
        return [ops, *(columns[name] for name in kept)]

    def counts_each(kept: Iterable[str]) -> float:
        return different(threads, *of(kept)) / different(*of(kept))

    if said and counts_each([]) <= _CURVES:
        return []
    needed = names
    for name in by_values:
        rest = [other for other in needed if other != name]
        if different(where, threads, *of(rest)) == different(where, threads, *of(names)):
            needed = rest
    results = [name for name in by_values if different(*of(needed), columns[name]) > different(*of(needed))]
    if counts_each(names) == 1 < counts_each([]):
        unclear = results if counts_each(needed) > _CURVES else by_values
    elif needed or labelled:
        unclear = [name for name in results if any(isinstance(cell, str) for cell in columns[name])]
    else:
        unclear = results
    if unclear:
        raise FormatError(
            f"it is not clear whether ops are described by {' and '.join(map(repr, unclear))}, which change with the "
            f"number of threads. If {unclear[0]!r} came of running them or is a date: --column 'ignored={unclear[0]}'; "
            f"if it describes ops: --column 'feature={unclear[0]}'"
        )
    return results
