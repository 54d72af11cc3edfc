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
    an equal one: it is always among them.
    """
    wanted = {m.op.key for m in measurements if says_when_or_how(m)}
    there = Counter(identity(m) for keys in chunks(wanted) for m in store.measurements(keys=keys))
    new = []
    for measured in measurements:
        same = identity(measured)
        if says_when_or_how(measured) and there[same]:
            there[same] -= 1
        else:
            new.append(measured)
    return new


def says_when_or_how(measured: Measurement) -> bool:
    """Whether conditions or a date of storing tell a measurement from a repetition of it."""
    return bool(measured.conditions) or measured.stored_s is not None


def identity(measured: Measurement) -> Hashable:
    """What copies of one measurement have in common; without conditions that includes when it was stored."""
    seconds = tuple(sample.seconds for sample in measured.samples)
    conditions = tuple(sorted((name, repr(value)) for name, value in measured.conditions.items()))
    stored_s = None if conditions else measured.stored_s
    return measured.op.key, measured.machine.fingerprint, measured.case, seconds, conditions, stored_s
