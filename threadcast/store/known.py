"""Which of several measurements a store holds already, so that copies of them do not count twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from threadcast.core import Measurement
from threadcast.store.queries import chunks

if TYPE_CHECKING:
    from threadcast.store.store import Store


def unknown(store: Store, measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that the store does not hold, in their order; equal ones are counted, so repetitions stay.

    One without conditions and without a date of storing, as any program's table has them, may be a true repetition of
    an equal one: it is always among them, as those that are stored have a date.
    """
    there = Counter(
        _identity(held)
        for keys in chunks({m.op.key for m in measurements if m.conditions or m.stored_s is not None})
        for held in store.measurements(keys=keys)
    )
    new = []
    for measured in measurements:
        same = _identity(measured)
        if there[same]:
            there[same] -= 1
        else:
            new.append(measured)
    return new


def _identity(measured: Measurement) -> Hashable:
    """What copies of one measurement have in common; without conditions that includes when it was stored."""
    conditions = tuple(sorted((name, repr(value)) for name, value in measured.conditions.items()))
    stored_s = None if conditions else measured.stored_s
    seconds = tuple(sample.seconds for sample in measured.samples)
    return measured.op.key, measured.machine.fingerprint, measured.case, conditions, stored_s, seconds
