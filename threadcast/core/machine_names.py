"""Finds the machine that somebody names: a known one, the one at hand, or a number of cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from threadcast.core.arguments import nearest
from threadcast.core.errors import InvalidInput, NotFound
from threadcast.core.machine import MAX_CORES, Machine
from threadcast.core.topology import read_machine

LOCAL = "local"
"""The name of the machine at hand: the cores that this process may use."""


def find_machine(name: str, known: Mapping[str, Machine], *, local: Callable[[], Machine] = read_machine) -> Machine:
    """The machine that `name` means: `LOCAL`; a number, of equal cores that share one cache; or the fingerprint or, in
    any case of letters, the name of one of `known`, machines by fingerprint.

    NotFound, with the nearest names, where none is meant; InvalidInput where several are.
    """
    if name in known:
        return known[name]
    folded = name.strip().casefold()
    if folded == LOCAL:
        return local()
    if folded.isascii() and folded.isdigit() and len(folded) < 9 and 1 <= int(folded) <= MAX_CORES:
        return Machine.uniform("cores", int(folded))
    named = [machine for machine in known.values() if folded in (machine.name.casefold(), machine.fingerprint)]
    if len(named) == 1:
        return named[0]
    if named:
        raise InvalidInput(f"{len(named)} machines are called {name[:80]!r}: {_listed([m.fingerprint for m in named])}")
    near = nearest(name.strip(), [*(text for m in known.values() for text in (m.name, m.fingerprint)), LOCAL], most=3)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise NotFound(
        f"no machine is called {name[:80]!r}{meant} Known are {_listed([*known])}; a number of cores or "
        f"{LOCAL!r}, this machine, will do too"
    )


def names_of(machine: Machine, known: Mapping[str, Machine], *, local: Callable[[], Machine]) -> list[str]:
    """What finds this one of `known`: `LOCAL`, its name and its fingerprint, each where it means no other machine."""
    names = []
    for name in dict.fromkeys((LOCAL, machine.name, machine.fingerprint)):
        with suppress(NotFound, InvalidInput):
            names += [name] * (find_machine(name, known, local=local) == machine)
    return names


def _listed(fingerprints: list[str], most: int = 5) -> str:
    """The first of these, and how many more there are; "none" where there are none."""
    more = f" and {len(fingerprints) - most} more" if len(fingerprints) > most else ""
    return (", ".join(fingerprints[:most]) or "none") + more
