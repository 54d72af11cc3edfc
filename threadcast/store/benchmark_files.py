"""Reads files of Google Benchmark, pyperf, pytest-benchmark and hyperfine as tables; their times become seconds.

Ops are described by what a name says: `BM_gemm/256/m:512/threads:4` is of kind BM_gemm, with arg1=256 and m=512, on
4 threads. Google Benchmark's own repetitions are samples, its aggregates are used where a file has nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.store.column_names import UNITS, says_threads
from threadcast.store.columns_of_others import OWN_THREADS
from threadcast.store.table_files import TableFile

Record = dict[str, Any]
"""One time: op, threads, seconds (None where there is none), and what else describes the op."""

_PAIR = re.compile(
    r"(?<![A-Za-z\d:.])(?:-{0,2}([A-Za-z_][\w-]*)\s*[=:](?!:)\s*|--?([\w-]*threads?)\s+)"
    r"((?:(?![-_,;/]+[A-Za-z_]+[=:])[\w.+-])+)"
)
"""A name and its value: m=300, threads:4, --threads 4."""
_JOINED = re.compile(r"(?<=\w)(?<!num)(?<![_-]n)[_-](?=(?:num[_-]?|n[_-]?)?threads?[=:]\d)")
_OPTION = re.compile(r"\s-\S*threads?[=\s]+\d+", re.I)
_COUNT = re.compile(r"(?<![A-Za-z\d])(?:(\d+)[ _-]?threads?|threads?[ _-]?(\d+))(?![A-Za-z\d])", re.I)
_SETTINGS = re.compile(r"/(?:(?:iterations|repeats|min_time|min_warmup_time):[^/]*|\w+l_time|process_time)\b(?!:)")
_AGGREGATE = re.compile(r"(.*)_(mean|median|stddev|cv|min|max|BigO|RMS)")
_PYPERF = re.compile(
    r"(aslr|boot|calibrate|command|condition|cpu|date|description|duration|gc|gil|hostname|inner|load|loops|mem|name|"
    r"perf|platform|process|pyperf|python|recalibrate|runnable|tags|timeit|timer|unit|uptime|warmups)(_.*)?"
)
"""Metadata that pyperf itself writes, and says nothing of the op."""

GOOGLE_CSV = ("name", "iterations", "real_time", "cpu_time", "time_unit")
HYPERFINE_CSV = ("command", "mean", "stddev", "median", "user", "system", "min", "max")


def json_table(path: Path, text: str) -> TableFile:
    """The table in the text of a JSON file: of Google Benchmark, pyperf or hyperfine, or a list of objects that are
    rows, or one such object a line. FormatError for any other."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        try:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise FormatError(f"{path} is not whole JSON: {error}") from error
    try:
        return _json_table(path, document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not as Google Benchmark, pyperf or hyperfine write it: {error!r}") from error


def _json_table(path: Path, document: Any) -> TableFile:
    if isinstance(document, dict):
        rows = next((document[name] for name in ("results", "data", "rows") if name in document), None)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) and "command" not in row for row in rows):
            document = rows
    if isinstance(document, dict) and not document.keys() & {"benchmarks", "results"}:
        columns = [list(cells.values()) if isinstance(cells, dict) else cells for cells in document.values()]
        if all(isinstance(cells, list) for cells in columns) and len(set(map(len, columns))) == 1:
            document = [dict(zip(document, cells, strict=True)) for cells in zip(*columns, strict=True)]
    entries = document.get("benchmarks", document.get("results")) if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{path} has no list of results; JSON may be of Google Benchmark, pyperf, hyperfine, or rows")
    if entries is document:
        return _table(path, entries)
    if "results" in document:
        return _table(path, _of_hyperfine(entries))
    about = document.get("metadata", document.get("context", {}))
    machine = about.get("host_name", about.get("hostname"))
    if any("runs" in entry for entry in entries):
        return _table(path, _of_pyperf(path, about, entries), machine=machine)
    if any("stats" in entry for entry in entries):
        return _table(path, _of_pytest(entries), machine=document.get("machine_info", {}).get("node"))
    return _table(path, _of_google(path, entries), machine=machine)


def known_table(table: TableFile) -> TableFile:
    """The table as it is, or as that of the program that wrote this CSV file: Google Benchmark or hyperfine."""
    for head, records in ((GOOGLE_CSV, _of_google), (HYPERFINE_CSV, _of_hyperfine_csv)):
        if table.columns[: len(head)] == head:
            rows = [dict(zip(table.columns, _cells(cells))) | {"": number} for number, cells in table.rows]
            return _table(table.path, records(table.path, rows), unit="line")
    return table


def _cells(cells: Any) -> Sequence[Any]:
    if isinstance(cells, FormatError):
        raise cells
    return cells  # type: ignore[no-any-return]


def _table(path: Path, records: Iterable[Record], *, unit: str = "result", machine: str | None = None) -> TableFile:
    """`records` as rows, numbered from 1, or by what they have under the empty name."""
    found = list(records)
    columns = tuple(dict.fromkeys(str(name) for record in found for name in record if name))
    nested = {name for record in found for name, cell in record.items() if isinstance(cell, list | dict)}
    rows = ((record.get("", i), [record.get(name) for name in columns]) for i, record in enumerate(found, start=1))
    return TableFile(path, columns, iter(list(rows)), unit, frozenset(nested), machine=machine)


def _named(text: str) -> Record:
    """The kind of op that a name says, the values that it gives names to, and its threads."""
    found: Record = {}
    text = _JOINED.sub(" ", text)
    for name, option, value in _PAIR.findall(text):
        found.setdefault((name or option).strip("-"), value)
    text = _PAIR.sub("", text)
    if not any(map(says_threads, found)) and (count := _COUNT.search(text)):
        found["threads"] = count[1] or count[2]
        text = text[: count.start()] + text[count.end() :]
    kind, *rest = [part for part in text.split("/") if part.strip()] or [""]
    words = [part for part in rest if not re.fullmatch(r"-?\d+(\.\d+)?", part)]
    found |= {f"arg{i}": part for i, part in enumerate((part for part in rest if part not in words), start=1)}
    kind = re.sub(r"\[[\s,;-]*\]|\([\s,;-]*\)", "", "/".join([kind, *words]))
    return {"op": re.sub(r"([\s_,;])\1+", r"\1", kind).strip(" _,;-") or "op", **found}


def _of_google(path: Path, entries: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The runs, or the aggregates of those of which only these are there. The number of threads that Google Benchmark
    itself started is `threads` where names say none; it is `own_threads`, and no answer, where it is 1 everywhere."""
    rounds: dict[str, set[str]] = {}
    for entry in entries:
        rounds.setdefault(str(entry["name"]), set()).add(str(entry.get("iterations")))
    labels: dict[str, set[str]] = {}
    for entry in entries:
        labels.setdefault(str(entry["name"]), set()).add(str(entry.get("label") or ""))
    found: list[tuple[str, str | None, Record]] = []
    for i, entry in enumerate(entries, start=1):
        name, aggregate = str(entry["name"]), entry.get("aggregate_name")
        split = _AGGREGATE.fullmatch(name)
        of_one = split and rounds.get(f"{split[1]}_mean") == rounds.get(f"{split[1]}_stddev", set())  # of repetitions
        if split and (aggregate or of_one or split[2] in ("BigO", "RMS")):
            name, aggregate = split[1], split[2]
        failed = str(entry.get("error_occurred", "")).lower() == "true" or entry.get("skipped")
        time, unit = entry.get("real_time"), entry.get("time_unit") or "ns"
        if unit not in UNITS:
            raise FormatError(f"{path}, result {i}, {name!r}: the time_unit {unit!r} must be {', '.join(UNITS)}")
        record = {**_named(_SETTINGS.sub("", name)), OWN_THREADS: entry.get("threads") or 1}
        if len(labels[str(entry["name"])]) > 1:
            record["about"] = str(entry.get("label") or "")
        if "real_time" not in entry and not (failed or aggregate):
            raise KeyError("real_time")
        record |= {"seconds": None if failed else _per(time, UNITS[unit]), "": entry.get("", i)}
        found.append((name, aggregate, record))
    single = {name for name, aggregate, _ in found if aggregate is None}
    median = {name for name, aggregate, _ in found if aggregate == "median"}
    kept = [
        record for name, aggregate, record in found
        if aggregate is None or (name not in single and aggregate == ("median" if name in median else "mean"))
    ]  # fmt: skip
    told = any(record[OWN_THREADS] != 1 or any(map(says_threads, record)) for record in kept)
    for record in kept if told else ():
        own = str(record.pop(OWN_THREADS))
        if own not in {record[name] for name in record if says_threads(name)} and (
            own != "1" or not any(map(says_threads, record))
        ):
            record["threads"] = own
    return kept


def _per(value: Any, count: int) -> Any:
    return value / count if isinstance(value, int | float) else f"{float(value) / count!r}" if value else None


def _of_pyperf(path: Path, about: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    for i, entry in enumerate(entries, start=1):
        of_all = {**about, **entry.get("metadata", {})}
        for run in entry["runs"]:
            metadata = {**of_all, **run.get("metadata", {})}
            name, unit = str(metadata.get("name", "op")), metadata.get("unit", "second")
            if unit != "second":
                raise FormatError(f"{path}, benchmark {i}, {name!r}: its values are in the unit {unit!r} and no times")
            own = {key: value for key, value in metadata.items() if not _PYPERF.fullmatch(key)}
            record = {**_named(name), **own}
            if any(map(says_threads, own)):  # which say it better than a name
                record = {key: value for key, value in record.items() if key in own or not says_threads(key)}
            for value in run.get("values", ()):
                yield {**record, "seconds": value, "": i}


def _of_pytest(entries: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """Of pytest-benchmark: all rounds where they were saved, else their median."""
    for i, entry in enumerate(entries, start=1):
        record = {**_named(str(entry["name"]).partition("[")[0]), **(entry.get("params") or {})}
        for seconds in entry["stats"].get("data") or [entry["stats"]["median"]]:
            yield {**record, "seconds": seconds, "": i}


def _of_hyperfine_csv(path: Path, entries: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    prefix = "parameter_"
    yield from _of_hyperfine([
        {
            "command": entry["command"], "median": entry["median"], "": entry[""],
            "parameters": {k.removeprefix(prefix): v for k, v in entry.items() if k.startswith(prefix)},
        }
        for entry in entries
    ])  # fmt: skip


def _of_hyperfine(entries: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """One record for each run that did not fail; a command without the values of its parameters is the op."""
    words = [_OPTION.sub("", str(entry["command"])).split() for entry in entries]
    given = [{str(k): str(v) for k, v in (entry.get("parameters") or {}).items()} for entry in entries]
    said = [_named(str(entry["command"])) for entry in entries]
    threads = [next((v for k, v in named.items() if says_threads(k)), None) for named in said]
    echoes = {k for values in given for k in values if not says_threads(k) and [of.get(k) for of in given] == threads}
    forms = [(tuple(values), len(own)) for values, own in zip(given, words, strict=True)]
    for i, (entry, values, own) in enumerate(zip(entries, given, words, strict=True)):
        alike = [at for at, form in enumerate(forms) if form == forms[i]]
        fixed = {v for k, v in values.items() if len({given[at][k] for at in alike}) == 1}
        same = [
            _without(word, fixed if len({words[at][n] for at in alike}) == 1 else values.values())
            for n, word in enumerate(own)
        ]
        aside = re.compile(r"-*|\w+=\S*")  # what sets the environment, and what is left of options
        program = [word for word in same if not aside.fullmatch(word)]
        op = _named(" ".join([program[0].rpartition("/")[2], *program[1:]]) if program else "")["op"]
        named = {k: v for k, v in {**said[i], **values}.items() if k not in echoes and not k.startswith("arg")}
        times = entry.get("times") or [entry["median"]]
        for time, code in zip(times, entry.get("exit_codes") or [0] * len(times), strict=True):
            yield {**named, "op": op, "seconds": time if code == 0 else None, "": entry.get("", i + 1)}


def _without(word: str, values: Iterable[str]) -> str:
    return re.sub("|".join(rf"(?<![\w.]){re.escape(value)}(?![\w.])" for value in values if value) or r"(?!)", "", word)
