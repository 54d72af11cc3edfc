"""The roofline of each machine, fitted to its measured ops or nominal: forecasts are relative to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from threadcast.collector.calibration import Calibration
from threadcast.core import Case, Machine, Op
from threadcast.core.curve import Floats
from threadcast.core.identity_cache import CachedByIdentity
from threadcast.core.json_reading import member, number
from threadcast.models.known_kinds import is_bare
from threadcast.models.measured import MeasuredOp, by_machine
from threadcast.models.nominal_roofline import nominal
from threadcast.models.roofline_limits import fit_limits, least_seconds
from threadcast.models.static_features import work

FITTED_FROM, FITTED_POINTS = 8, 4000
"""Fewest ops from which a machine's limits are fitted, and the most measured points that are used, evenly chosen."""

UNIT_S = 1e-10
"""Seconds that a unit of `work` takes on one thread, where nothing tells how many. A convention."""

UNKNOWN_S = 1e-3
"""Seconds on one thread of an op of which nothing is known. A convention."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits of machines by fingerprint; a machine that is not among them has nominal ones.

    Ops of tables, without tensors, have none: each is assumed to take its work over its threads, `unit_s` seconds a
    unit. Their work is unknown or made up from other columns, so that no machine's peaks limit it.
    """

    known: Mapping[str, Calibration] = field(default_factory=dict)
    unit_s: float = UNIT_S

    @classmethod
    def learned(cls, entries: Sequence[MeasuredOp]) -> MachineLimits:
        """The fitted limits of the machines of which enough ops were measured."""
        known: dict[str, Calibration] = {}
        limited = [entry for entry in entries if has_work(entry.op) and not is_bare(entry.op)]
        for fingerprint, own in by_machine(limited).items():
            if len(own) >= FITTED_FROM:
                points = sum(len(entry.by_case) for entry in own)
                known[fingerprint] = fit_limits(fingerprint, own[:: max(1, points // FITTED_POINTS)])
        return cls(known)

    def __deepcopy__(self, memo: object) -> MachineLimits:
        """This object: it never changes."""
        return self

    def log_seconds(self, ops: Sequence[Op], machine: Machine, cases: Sequence[Case]) -> Floats:
        """(n_ops, n_cases) the logarithm of the roofline's seconds.

        Of ops without tensors and without work, it is that of `UNKNOWN_S` over the number of threads.
        """
        limits = self.known.get(machine.fingerprint) or nominal(machine)
        found: Floats = np.log(least_seconds(limits, ops, tuple(cases), machine))
        alone = [i for i, op in enumerate(ops) if has_work(op) and is_bare(op)]
        if alone:
            found[alone] = np.log(self.unit_s) + work_per_thread([ops[i] for i in alone], cases)
        unknown = np.array([not has_tensors_or_work(op) for op in ops], dtype=bool)
        found[unknown] = np.log(UNKNOWN_S) - np.log([case.threads for case in cases])
        return found

    def to_json(self) -> dict[str, Any]:
        """The limits as a JSON object."""
        return {"machines": [calibration.to_json() for calibration in self.known.values()], "unit_s": self.unit_s}

    @classmethod
    def from_json(cls, document: Any) -> MachineLimits:
        """Read what `to_json` returned."""
        machines = map(Calibration.from_json, member(document, "machines", list))
        unit_s = number(document, "unit_s", minimum=1e-15, default=1.0)  # stored before units
        return cls({one.machine: one for one in machines}, unit_s)


def work_per_thread(ops: Sequence[Op], cases: Sequence[Case]) -> Floats:
    """(n_ops, n_cases) log of an op's work per thread."""
    found: Floats = np.log(work(ops))[:, None] - _log_threads(tuple(cases))
    return found


@CachedByIdentity
def _log_threads(cases: tuple[Case, ...]) -> Floats:
    """(n_cases,)"""
    found: Floats = np.log(np.array([case.threads for case in cases], dtype=np.float64))
    return found


def has_work(op: Op) -> bool:
    """Whether flops or bytes of the op are known."""
    return op.flops > 0 or op.bytes_moved > 0


def has_tensors_or_work(op: Op) -> bool:
    """Whether anything is known by which the op's time can be guessed."""
    return has_work(op) or not is_bare(op)
