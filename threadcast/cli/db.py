"""`threadcast db`: what the store holds, import, export and pruning."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from threadcast.cli.op_choice import names_of
from threadcast.cli.options import common, setting
from threadcast.cli.output import Output, table
from threadcast.cli.table_reading import Reading, table_options
from threadcast.core.errors import FormatError, NotFound
from threadcast.core.settings import Settings

if TYPE_CHECKING:
    from threadcast.core import Measurement
    from threadcast.store import Store

FOUND = click.Path(exists=True, dir_okay=False, path_type=Path)
EXPORTS = (".csv", ".csv.gz", ".parquet")


def _with_known_suffix(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    if not path.name.lower().endswith(EXPORTS):
        raise click.BadParameter(f"{path} must end in {', '.join(EXPORTS[:-1])} or {EXPORTS[-1]}")
    return path


@click.group()
def command() -> None:
    """Inspect, import, export, check, prune and back up measurements."""


@command.command()
@setting("store", "--store")
@common
def info(output: Output, settings: Settings) -> None:
    """Show where the store is and how much it holds."""
    with _open(settings) as store:
        counts = store.counts()
        machines = store.machines()
        graphs = store.graphs()
        document = {
            "store": store.name, "schema": store.revision, "measurements": counts.measurements,
            "samples": counts.samples, "ops": counts.ops,
            "machines": [{"fingerprint": m.fingerprint, "name": m.name, "cores": len(m)} for m in machines],
            "graphs": graphs,
        }  # fmt: skip
    shown = [f"{store.name}, schema {document['schema']}"]
    shown.append(f"{counts.measurements:,} measurements of {counts.ops:,} ops, {counts.samples:,} samples")
    rows = [(m.fingerprint, len(m)) for m in machines]
    output.result(document, *shown, table(("machine", "cores"), rows), f"graphs: {', '.join(graphs) or 'none'}")


@command.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--machine", help="Only of the machine with this fingerprint.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most ops of each machine.")
@setting("store", "--store")
@common
def ops(output: Output, settings: Settings, texts: tuple[str, ...], machine: str | None, limit: int) -> None:
    """List the measured ops by the names and sizes that their tables have, the longest ones first.

    Each TEXT must be in an op's kind or sizes: `threadcast db ops sgemm`. `threadcast predict --op` takes what is
    listed; keys, which tell all ops apart, are in --json.
    """
    from threadcast.store.browsing import OpFilter

    lines = []
    with _open(settings) as store:
        known = [found.fingerprint for found in store.machines()]
        if machine is not None and machine not in known:
            raise NotFound(f"no machine has the fingerprint {machine!r}; the store knows {', '.join(known) or 'none'}")
        for fingerprint in [machine] if machine else known:
            found, total = store.browse.ops(OpFilter(fingerprint, text=" ".join(texts)), limit=limit)
            lines += [(fingerprint, line) for line in found]
            if total > len(found):
                output.note(f"{total - len(found):,} more ops on {fingerprint}: --limit {total} lists them all")
        by_key = {op.key: op for op in store.ops(keys=[line.key for _, line in lines])}
    names = names_of([by_key[line.key] for _, line in lines])
    document = [
        {
            "name": name, "key": line.key, "kind": line.kind, "machine": fingerprint, "cases": line.cases,
            "samples": line.samples, "best_s": line.best_s,
            "best": {"threads": line.best.threads, "affinity": line.best.affinity.value},
        }
        for name, (fingerprint, line) in zip(names, lines, strict=True)
    ]  # fmt: skip
    tables: list[Any] = [
        table(
            ("op", "cases", "best case", "time_s"),
            [
                (name, line.cases, str(line.best), line.best_s)
                for name, (on, line) in zip(names, lines, strict=True)
                if on == fingerprint
            ],
            title=f"on {fingerprint}",
        )
        for fingerprint in dict.fromkeys(on for on, _ in lines)
    ]
    output.result({"store": store.name, "ops": document}, *(tables or ["no measured op"]))


@command.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FOUND)
@table_options
@setting("store", "--store")
@common
def import_(output: Output, settings: Settings, files: tuple[Path, ...], reading: Reading) -> None:
    """Add the measurements of FILEs, tables as CSV (also gzipped) or Parquet.

    A table needs a column of threads, one of times, and op or columns that describe the op, such as m, k, n. Usual
    names are known (num_threads, time_ms); --column says others, and the unit where a name does not. All files are
    read before any is added. A file that was added before, under whatever name, is not added again; nor are those
    measurements of an export that the store has. Measurements of other files, without conditions, count as repetitions.
    """
    from threadcast.store import Store
    from threadcast.store.known import unknown

    named = {"machine": reading.machine, "op": reading.op}
    labels = "".join(f" {name} {label}" for name, label in named.items() if label)
    read = [(path, *_read_unchanged(path, reading, output)) for path in files]
    rows = []
    with Store.open(settings["store"]) as store:
        for path, measurements, digest in read:
            new = unknown(store, measurements)
            added = store.add(new, idempotency_key=f"file {digest}{labels}") if new else 0
            samples = sum(len(m.samples) for m in new) if added else 0
            rows.append({"file": str(path), "measurements": added, "samples": samples})
            if there := len(measurements) - len(new):
                output.note(f"{path}: {there:,} of {len(measurements):,} measurements are in the store already")
            if new and not added:
                output.note(f"{path} was added before; nothing of it was added again, and nothing read otherwise")
        document = {"store": store.name, "files": rows}
    output.result(document, table(("file", "measurements", "samples"), [list(row.values()) for row in rows]))


def _read_unchanged(path: Path, reading: Reading, output: Output) -> tuple[list[Measurement], str]:
    """The measurements in a file and the digest of its bytes; FormatError where they change while they are read."""
    from threadcast.store.table_files import digest_of

    digest = digest_of(path)
    measurements = reading.measurements(path, output)
    if digest_of(path) != digest:
        raise FormatError(f"{path} has changed while it was read; import it when nothing writes to it any more")
    return measurements, digest


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), callback=_with_known_suffix)
@click.option("--machine", help="Only of the machine with this fingerprint.")
@click.option("--network", help="Only ops of this stored graph.")
@click.option("--kind", "kinds", multiple=True, help="Only ops of this kind; may be repeated.")
@setting("store", "--store")
@common
def export(
    output: Output, settings: Settings, file: Path, machine: str | None, network: str | None, kinds: tuple[str, ...]
) -> None:
    """Write measurements to FILE, as a table in the long form: .csv, .csv.gz or .parquet.

    Measurements whose op kind or counters have names that are not printable, or padded, are left out with a warning.
    So are those that no import takes: with samples outside of 1e-12 to 1e9 seconds, or times more than a day ahead.
    """
    from threadcast.store.long_form import write_long_form
    from threadcast.store.unwritable import unwritable_names, wrong_values

    now_s = time.time()
    with _open(settings) as store:
        measurements = store.measurements(machine=machine, network=network, kinds=kinds or None)
    kept: list[Measurement] = []
    left_out: Counter[str] = Counter()
    for m in measurements:
        if names := unwritable_names(m):
            output.warn(f"a measurement of {m.op.key} at {m.case} is left out: no file can hold {names[0]!r}")
        elif why := wrong_values(m, now_s=now_s):
            left_out[why] += 1
        else:
            kept.append(m)
    for why, count in left_out.items():
        output.warn(f"{count:,} of {len(measurements):,} measurements are left out, which no import would take: {why}")
    write_long_form(kept, file)
    samples = sum(len(m.samples) for m in kept)
    document = {"file": str(file), "measurements": len(kept), "samples": samples}
    output.result(document, f"{file}: {len(kept):,} measurements, {samples:,} samples")


@command.command()
@setting("store.keep_days", "--keep-days")
@click.option("--dry-run", is_flag=True, help="Delete nothing; say what would be deleted.")
@setting("store", "--store")
@common
def prune(output: Output, settings: Settings, dry_run: bool) -> None:
    """Delete measurements that are too old, so that the store stays small.

    No op becomes unknown: its newest measurement in each case stays. Run it by a timer, also while others use the
    store; it can be ended at any time. The file of a SQLite store does not shrink: new measurements take the room.
    """
    if settings["store.keep_days"] is None:
        raise click.UsageError("nothing says what to keep; give --keep-days, or set store.keep_days")
    with _open(settings) as store:
        found = store.prune(settings["store.keep_days"], dry_run=dry_run)
        document = {
            "store": store.name, "dry_run": dry_run, "measurements": found.measurements, "samples": found.samples,
        }  # fmt: skip
    done = "would be deleted" if dry_run else "deleted"
    output.result(document, f"{found.samples:,} samples {done}, with them {found.measurements:,} measurements")


@command.command()
@setting("store", "--store")
@common
def check(output: Output, settings: Settings) -> None:
    """Read everything back and report damage; exit code 1 if there is any."""
    with _open(settings) as store:
        problems = store.check()
        output.result({"store": store.name, "problems": problems}, *(problems or [f"{store.name} is sound"]))
    if problems:
        raise click.exceptions.Exit(1)


@command.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@setting("store", "--store")
@common
def backup(output: Output, settings: Settings, file: Path) -> None:
    """Write all that the store holds to the new FILE, as it is at one moment, while others go on writing.

    FILE is a store in SQLite: `threadcast db check --store FILE` reads it back. For PostgreSQL use its own pg_dump.
    """
    from threadcast.store.backup import back_up

    back_up(settings["store"], file)
    size = file.stat().st_size
    output.result({"file": str(file), "bytes": size}, f"{file}: {size:,} bytes")


@command.command()
@click.argument("file", type=FOUND)
@click.option("--replace", is_flag=True, help="Replace all that the store holds.")
@setting("store", "--store")
@common
def restore(output: Output, settings: Settings, file: Path, replace: bool) -> None:
    """Make the store hold what the backup FILE holds, all or nothing. Restart services on the store afterwards."""
    from threadcast.store import Store
    from threadcast.store.backup import restore as restored

    restored(file, settings["store"], replace=replace)
    with Store.open(settings["store"], create=False) as store:
        counts = store.counts()
        document = {"store": store.name, "measurements": counts.measurements, "samples": counts.samples}
        said = f"{store.name} holds {counts.measurements:,} measurements, {counts.samples:,} samples"
        output.result(document, said)


def _open(settings: Settings) -> Store:
    from threadcast.store import Store

    return Store.open(settings["store"], create=False)
