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

_FILE = "measurements.csv"


def measured_in_steps(url: str | None, machine: Machine) -> list[Measurement]:
    """Return what the store at `url` has of operators in steps on `machine` or part of its cores and a file can hold.

    Empty where there is no store; StoreError where it cannot be read.
    """
    from threadcast.store import Store
    from threadcast.store.unwritable import is_writable

    if url is None or not is_there(url):
        return []
    with Store.open(url, create=False) as store:
        machines = [found.fingerprint for found in store.machines() if is_part(found, machine)]
        found = [row for fingerprint in machines for row in store.measurements(machine=fingerprint)]
    now_s = time.time()
    in_steps = (measured for measured in found if measured.conditions.get("cache") == IN_STEP)
    return [measured for measured in in_steps if is_writable(measured, now_s=now_s)]


def is_part(one: Machine, whole: Machine) -> bool:
    """Return whether `one` is `whole`, or what is left of it with fewer cores."""
    ids = {core.id for core in one.cores}
    return ids <= {core.id for core in whole.cores} and whole.limited_to(ids) == one


def to_text(measurements: Sequence[Measurement]) -> bytes:
    """Return the measurements, at least one, in the long form."""
    from threadcast.store.long_form import write_long_form

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _FILE)
        write_long_form(measurements, path)
        return path.read_bytes()


def from_text(text: bytes, machine: Machine) -> list[Measurement]:
    """Return the measurements that `to_text` wrote.

    BundleError where the text is not such a table, or one of them is not of a step on `machine`.
    """
    found = _read(text)
    parts = {one: is_part(one, machine) for one in {measured.machine for measured in found}}
    for measured in found:
        if not parts[measured.machine] or measured.conditions.get("cache") != IN_STEP:
            raise BundleError(
                f"the bundle's measurement of {measured.op.key} is not of a step on {machine.fingerprint}"
            )
    return found


def ops_in(text: bytes | None) -> int:
    """Return the number of different operators in such a text; 0 for None."""
    return 0 if text is None else len({measured.op.key for measured in _read(text)})


def _read(text: bytes) -> list[Measurement]:
    from threadcast.store.long_form import read_long_form

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, _FILE)
            path.write_bytes(text)
            return read_long_form(path)
    except InvalidInput as error:
        raise BundleError(f"the bundle's measurements cannot be read: {error}") from error


def add_new(url: str, measurements: Sequence[Measurement], *, key: str, machine: Machine) -> int:
    """Add to the store what it does not have yet, and return the number of measurements added.

    `key` makes sure that two processes do not add the same at the same time.
    """
    from threadcast.store import Store
    from threadcast.store.known import identity

    there = {identity(measured) for measured in measured_in_steps(url, machine)}
    new = [measured for measured in measurements if identity(measured) not in there]
    if not new:
        return 0
    with Store.open(url) as store:
        return store.add(new, idempotency_key=key)
