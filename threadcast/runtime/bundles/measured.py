"""Measurements of operators in steps, as one file of a bundle in the long form."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from threadcast.core import Machine, Measurement
from threadcast.core.errors import BundleError, InvalidInput
from threadcast.runtime.plans.step_forecasts import is_there
from threadcast.runtime.plans.step_rows import IN_STEP


def measured_in_steps(url: str | None, machine: Machine) -> list[Measurement]:
    """Return what the store at `url` has of operators in steps on `machine` or part of its cores and a file can hold.

    Empty where there is no store; StoreError where it cannot be read.
    """
    from threadcast.store import Store
    from threadcast.store.unwritable import is_writable

    if url is None or not is_there(url):
        return []
    with Store.open(url, create=False) as store:
        machines = [one.fingerprint for one in store.machines() if _is_part(one, machine)]
        rows = [row for fingerprint in machines for row in store.measurements(machine=fingerprint)]
    now_s = time.time()
    return [row for row in rows if row.conditions.get("cache") == IN_STEP and is_writable(row, now_s=now_s)]


def _is_part(one: Machine, whole: Machine) -> bool:
    """Whether `one` is `whole`, or what is left of it with fewer cores."""
    ids = {core.id for core in one.cores}
    return ids <= {core.id for core in whole.cores} and whole.limited_to(ids) == one


def to_text(measurements: Sequence[Measurement]) -> bytes:
    """Return the measurements, at least one, in the long form."""
    from threadcast.store.long_form import write_long_form

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "measurements.csv")
        write_long_form(measurements, path)
        return path.read_bytes()


def from_text(text: bytes, machine: Machine) -> list[Measurement]:
    """Return the measurements that `to_text` wrote.

    BundleError where the text is not such a table, or one of them is not of a step on `machine`.
    """
    found = _read(text)
    parts = {one: _is_part(one, machine) for one in {row.machine for row in found}}
    for row in found:
        if not parts[row.machine] or row.conditions.get("cache") != IN_STEP:
            raise BundleError(f"the bundle's measurement of {row.op.key} is not of a step on {machine.fingerprint}")
    return found


def add_new(url: str, measurements: Sequence[Measurement], *, key: str) -> int:
    """Add to the store what it does not have yet, and return the number of measurements added.

    `key` makes sure that two processes do not add the same at the same time.
    """
    from threadcast.store import Store
    from threadcast.store.known import unknown

    with Store.open(url) as store:
        new = unknown(store, measurements)
        return store.add(new, idempotency_key=key) if new else 0


def ops_in(text: bytes | None) -> int:
    """Return the number of different operators in such a text; 0 for None."""
    return 0 if text is None else len({row.op.key for row in _read(text)})


def _read(text: bytes) -> list[Measurement]:
    from threadcast.store.long_form import read_long_form

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "measurements.csv")
            path.write_bytes(text)
            return read_long_form(path)
    except InvalidInput as error:
        raise BundleError(f"the bundle's measurements cannot be read: {error}") from error
