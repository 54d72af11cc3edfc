"""Reads files of Google Benchmark, pyperf and hyperfine as tables, and JSON of rows; benchmarks' times become seconds.

Ops are described by what a name says: `BM_gemm/256/m:512/threads:4` is of kind BM_gemm, with arg1=256 and m=512, on
4 threads. Repetitions are samples; Google Benchmark's aggregates are used where a file has nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from threadcast.core.errors import FormatError
from threadcast.store.column_names import UNITS, says_threads
from threadcast.store.table_files import TableFile

Record = dict[str, Any]
"""One time: op, threads, seconds (None where there is none), and what else describes the op."""

_PAIR = re.compile(
    r"(?<![A-Za-z\d:.])(?:-{0,2}([A-Za-z_][\w-]*)\s*[=:](?!:)\s*|--?([\w-]*threads?)\s+)"
    r"((?:(?![-_,;/]+[A-Za-z_]+[=:])[\w.+-])+)"
)
"""A name and its value: m=300, threads:4, --threads 4."""
_COUNT = re.compile(r"(?<![A-Za-z\d])(?:(\d+)[ _-]?threads?|threads?[ _-]?(\d+))(?![A-Za-z\d])", re.I)
_SETTINGS = re.compile(r"/(?:(?:iterations|repeats|min_time|min_warmup_time):[^/]*|\w+l_time|process_time)\b(?!:)")
_AGGREGATE = re.compile(r"(.*)_(mean|median|stddev|cv|min|max|BigO|RMS)")
_PYPERF = re.compile(
    r"(aslr|boot|calibrate|command|condition|cpu|date|description|duration|gc|gil|hostname|inner|load|loops|mem|name|"
    r"perf|platform|process|pyperf|python|recalibrate|runnable|tags|timeit|timer|unit|uptime|warmups)(_.*)?"
)
"""Metadata that pyperf itself writes, and says nothing of the op."""

GOOGLE_CSV = ("name", "iterations", "real_time", "cpu_time", "time_unit")
"""The first columns of a CSV file of Google Benchmark."""


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
    entries = document.get("benchmarks", document.get("results")) if isinstance(document, dict) else document
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError(f"{path} has no list of results; JSON may be of Google Benchmark, pyperf, hyperfine, or rows")
    try:
        if entries is document:
            return _table(path, entries)
        if "results" in document:
            return _table(path, _of_hyperfine(entries))
        about = document.get("metadata", document.get("context", {}))
        of_pyperf = any("runs" in entry for entry in entries)
        records = _of_pyperf(path, about, entries) if of_pyperf else _of_google(path, entries)
        return _table(path, records, machine=about.get("host_name", about.get("hostname")))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path} is not as Google Benchmark, pyperf or hyperfine write it: {error!r}") from error


def google_csv(table: TableFile) -> TableFile:
    """The table of a CSV file of Google Benchmark."""
    rows = []
    for number, cells in table.rows:
        if isinstance(cells, FormatError):
            raise cells
        rows.append({**dict(zip(table.columns, cells, strict=True)), "": number})
    return _table(table.path, _of_google(table.path, rows), unit="line")


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
    """The runs, or the aggregates of those of which only these are there.

    The threads that Google Benchmark itself started count where a name says none, and more than one was started
    anywhere: it writes 1 of all benchmarks that it runs on its own thread.
    """
    rounds: dict[str, set[str]] = {}
    labels: dict[str, set[str]] = {}
    for entry in entries:
        rounds.setdefault(str(entry["name"]), set()).add(str(entry.get("iterations")))
        labels.setdefault(str(entry["name"]), set()).add(str(entry.get("label") or ""))
    found: list[tuple[str, str | None, Record]] = []
    for i, entry in enumerate(entries, start=1):
        name, aggregate = str(entry["name"]), entry.get("aggregate_name")
        split = _AGGREGATE.fullmatch(name)
        of_one = split and rounds.get(f"{split[1]}_mean") == rounds.get(f"{split[1]}_stddev", set())  # of repetitions
        if split and (aggregate or of_one or split[2] in ("BigO", "RMS")):
            name, aggregate = split[1], split[2]
        failed = str(entry.get("error_occurred", "")).lower() == "true" or entry.get("skipped")
        unit = entry.get("time_unit") or "ns"
        if unit not in UNITS:
            raise FormatError(f"{path}, result {i}, {name!r}: the time_unit {unit!r} must be {', '.join(UNITS)}")
        record = _named(_SETTINGS.sub("", name))
        if len(labels[str(entry["name"])]) > 1:
            record["about"] = str(entry.get("label") or "")
        if "real_time" not in entry and not (failed or aggregate):
            raise KeyError("real_time")
        time = entry.get("real_time") or None
        record |= {"seconds": None if failed or time is None else float(time) / UNITS[unit], "": entry.get("", i)}
        found.append((name, aggregate, record))
    single = {name for name, aggregate, _ in found if aggregate is None}
    median = {name for name, aggregate, _ in found if aggregate == "median"}
    chosen = [
        (record, entry.get("threads") or 1) for (name, aggregate, record), entry in zip(found, entries, strict=True)
        if aggregate is None or (name not in single and aggregate == ("median" if name in median else "mean"))
    ]  # fmt: skip
    if any(own != 1 or any(map(says_threads, record)) for record, own in chosen):
        for record, own in chosen:
            named = [str(record[name]) for name in record if says_threads(name)]
            if not named or (own != 1 and str(own) not in named):
                record["threads"] = own
    return [record for record, _ in chosen]


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


def _of_hyperfine(entries: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """One record for each run that did not fail. The words that are the same in all commands with the same parameters
    are the op; without parameters, the whole command is."""
    given = [{str(name): str(value) for name, value in (entry.get("parameters") or {}).items()} for entry in entries]
    words = [str(entry["command"]).split() for entry in entries]
    forms = [(tuple(values), len(own)) for values, own in zip(given, words, strict=True)]
    said = [_named(str(entry["command"])) for entry in entries]
    threads = [{name: value for name, value in of.items() if says_threads(name)} for of in said]
    echoes = {
        name for values in given for name in values
        if not says_threads(name) and all(of.get(name) in own.values() for of, own in zip(given, threads, strict=True))
    }  # fmt: skip
    for i, (entry, values) in enumerate(zip(entries, given, strict=True)):
        record = said[i]
        if values:
            alike = [words[at] for at, form in enumerate(forms) if form == forms[i]]
            same = " ".join(column[0] for column in zip(*alike, strict=True) if len(set(column)) == 1)
            record = {} if any(map(says_threads, values)) else threads[i]
            record = {"op": same or "command", **record, **{k: v for k, v in values.items() if k not in echoes}}
        times = entry.get("times") or [entry["median"]]
        for time, code in zip(times, entry.get("exit_codes") or [0] * len(times), strict=True):
            yield {**record, "seconds": time if code == 0 else None, "": i + 1}
