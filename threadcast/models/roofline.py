"""Time from flops, bytes and the limits of the machine, without any measurement of the op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np

from threadcast.collector.calibration import Calibration
from threadcast.core import Case, CurveTable, Machine, Measurement, Op, Source
from threadcast.core.errors import ModelError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.base import BatchModel
from threadcast.models.interpolation import forecast_table, with_known
from threadcast.models.intervals import read_log_bounds, residual_bounds
from threadcast.models.measured import by_case, by_machine, group, usable
from threadcast.models.roofline_limits import fit_limits, least_seconds

SCHEMA = "threadcast.roofline/1"

UNFITTED_BOUNDS = (-float(np.log(1.25)), float(np.log(10.0)))
"""Log-time interval of a calibrated roofline that was not fitted to measured ops. A convention: the roofline is the
least time, the calibration may be a fifth off, and kernels reach a tenth of the limit or more."""


class Roofline(BatchModel):
    """Forecasts the longer of compute time and memory time, plus the cost of starting the team.

        time(n) = max(flops / (n core_flops), bytes / rate(n)) + fork_join(n)
        rate(n) = n cache_rate of the first cache level where the bytes fit into the caches of the n cores,
                  else min(n core_rate, all_rate) of memory

    Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model"; the fork-join term
    and the saturation of bandwidth over cores are added. It proposes no measurements; at measured cases it returns the
    measured times. `fit` finds the constants (without cache levels) of machines that have no calibration from measured
    ops, and sets the interval of every machine to the central 90 % of its log residuals. Algorithms, load imbalance and
    affinity are left out: expect the right order of magnitude, not the right percent.
    """

    name = "roofline"
    _source = Source.LEARNED

    def __init__(self, *, calibrations: Iterable[Calibration] = ()) -> None:
        self._limits = {c.machine: c for c in calibrations}
        self._bounds: dict[str, tuple[float, float]] = {}

    def fit(self, measurements: Sequence[Measurement]) -> Self:
        """Fit the constants of machines without a calibration, and every machine's interval."""
        entries, _ = usable(group(measurements))
        limits, bounds = dict(self._limits), dict(self._bounds)
        for fingerprint, listed in by_machine(entries).items():
            times = np.array([m.seconds for entry in listed for m in entry.by_case.values()])
            if fingerprint not in limits:
                limits[fingerprint] = fit_limits(fingerprint, listed)
            expected = [least_seconds(limits[fingerprint], [e.op], tuple(e.by_case), e.machine)[0] for e in listed]
            bounds[fingerprint] = residual_bounds(np.log(times) - np.log(np.concatenate(expected)))
        self._limits, self._bounds = limits, bounds
        return self

    def knows(self, op: Op) -> Source | None:
        """None for an op without tensors, FLOPs and bytes: nothing tells its time."""
        return self._source if op.inputs or op.outputs or op.flops or op.bytes_moved else None

    def predict_many(
        self, ops: Sequence[Op], observed: Sequence[Sequence[Measurement]], cases: Sequence[Case], *, machine: Machine
    ) -> CurveTable:
        """The roofline's times, and measured points where there are any."""
        limits = self._limits.get(machine.fingerprint)
        if limits is None:
            raise ModelError(
                f"the roofline has no calibration of {machine.fingerprint}; run `threadcast train --calibrate` on it, "
                "or fit it to measurements from it"
            )
        self.check_batch(ops, observed)
        low, high = np.exp(self._bounds.get(machine.fingerprint, UNFITTED_BOUNDS))
        seconds = least_seconds(limits, ops, tuple(cases), machine)
        table = forecast_table(cases, seconds, seconds * low, seconds * high, self.name, self._source)
        return with_known(table, list(map(by_case, observed)))

    def to_files(self) -> dict[str, bytes]:
        """The calibrations and intervals as JSON."""
        document = {
            "schema": SCHEMA,
            "calibrations": [limits.to_json() for limits in self._limits.values()],
            "log_bounds": {machine: list(bounds) for machine, bounds in self._bounds.items()},
        }
        return {"model.json": json_bytes(document)}

    def from_files(self, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned."""
        document = read_json(files, "model.json")
        with reading("model.json"):
            check_schema(document, SCHEMA)
            limits = [Calibration.from_json(part) for part in document["calibrations"]]
            listed = member(document, "log_bounds", dict)
            bounds = {machine: read_log_bounds(pair) for machine, pair in listed.items()}
        self._limits, self._bounds = {c.machine: c for c in limits}, bounds
        return self
