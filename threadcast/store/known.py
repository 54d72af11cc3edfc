"""Which of several measurements a store holds already, so that copies of them do not count twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from threadcast.core import Measurement
from threadcast.store.queries import chunks

if TYPE_CHECKING:
    from threadcast.store.store import Store


def unknown(store: Store, measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that the store does not hold, in their order; equal ones are counted, so repetitions stay.

    Of one with a date either may have some samples only, as `threadcast db prune` leaves them. One without conditions
    and without a date of storing, as any program's table has them, may be a true repetition of an equal one: it is
    always among them.
    """
    wanted = {m.op.key for m in measurements if says_when_or_how(m)}
    there: defaultdict[Hashable, list[Counter[float]]] = defaultdict(list)
    for keys in chunks(wanted):
        for held in store.measurements(keys=keys):
            there[_even_if_cut(held)].append(Counter(_seconds(held)))
    new = []
    for measured in measurements:
        like = there[_even_if_cut(measured)] if says_when_or_how(measured) else []
        seconds = Counter(_seconds(measured))
        copies = [held for held in like if held <= seconds or seconds <= held]
        if copies:
            like.remove(max(copies, key=lambda held: (held & seconds).total()))
        else:
            new.append(measured)
    return new


def says_when_or_how(measured: Measurement) -> bool:
    """Whether conditions or a date of storing tell a measurement from a repetition of it."""
    return bool(measured.conditions) or measured.stored_s is not None


def identity(measured: Measurement) -> Hashable:
    """What copies of one measurement have in common; without conditions that includes when it was stored."""
    return _made(measured), _seconds(measured)


def _even_if_cut(measured: Measurement) -> Hashable:
    """What a measurement has in common with copies that have fewer samples; without a date, with equal ones only."""
    dated = "time" in measured.conditions or not measured.conditions
    return _made(measured) if dated else identity(measured)


def _made(measured: Measurement) -> Hashable:
    conditions = tuple(sorted((name, repr(value)) for name, value in measured.conditions.items()))
    stored_s = None if conditions else measured.stored_s
    return measured.op.key, measured.machine.fingerprint, measured.case, conditions, stored_s


def _seconds(measured: Measurement) -> tuple[float, ...]:
    return tuple(sample.seconds for sample in measured.samples)
