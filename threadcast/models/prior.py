"""What is assumed of ops on machines where nothing was measured: a prior, learned from other machines and shipped."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np

from threadcast.core import Case, Machine, Measurement, Op
from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import check_schema, member
from threadcast.models.artefacts import json_bytes, read_json, reading
from threadcast.models.machine_transfer import MachineTransfer
from threadcast.models.machines_left_out import machines_left_out
from threadcast.models.measured import group, usable
from threadcast.models.point_trees import Points, PointTrees, Shape

SCHEMA = "threadcast.prior/1"

SERIAL = 0.05
"""Assumed part of the work that threads do not divide (Amdahl). A convention."""

SHIPPED = Path(__file__).parent / "shipped_prior"
"""The files of the prior that comes with this version; `benchmarks/shipped_prior.py` learns and judges it."""

_DEGREE, _MOST_CASES, _MOST_KEPT = 3, 24, 100_000


class Prior:
    """Forecasts of ops on machines that nobody measured.

    A curve is the geometric mean of two: a polynomial in the logarithm of the threads, fitted to what boosted trees
    forecast, and Amdahl's law, moved to the same level. Trees alone have steps at which no real time changes.
    `transfer` says how far such forecasts were off on machines that the trees did not know.
    """

    def __init__(self, trees: PointTrees, features: int, transfer: MachineTransfer) -> None:
        self._trees, self._features, self.transfer = trees, features, transfer
        self._kept: dict[tuple[Hashable, ...], Floats] = {}

    @classmethod
    def learned(cls, measurements: Sequence[Measurement], *, shape: Shape, jobs: int = 1) -> Self:
        """Learn from measurements on several machines."""
        entries, _ = usable(group(measurements))
        points = Points.of(entries)
        transfer = MachineTransfer.learned(machines_left_out(entries, points, shape, jobs=jobs))
        trees = points.trees("xgboost", shape, slice(None), jobs=jobs)
        return cls(trees, points.features.shape[1], transfer)

    def log_seconds(self, ops: Sequence[Op], machine: Machine, cases: Sequence[Case]) -> Floats:
        """(n_ops, n_cases) log seconds."""
        if not ops:
            return np.empty((0, len(cases)))
        fitted = _some(machine.cases())
        own, at = _powers(fitted, machine), _powers(cases, machine)
        factors = self._factors(ops, machine, fitted, own)
        level = (own @ factors.T).mean(axis=0) - _amdahl(fitted).mean()
        found: Floats = 0.5 * (at @ factors.T).T + 0.5 * (level[:, None] + _amdahl(cases))
        return found

    def _factors(self, ops: Sequence[Op], machine: Machine, fitted: Sequence[Case], powers: Floats) -> Floats:
        """(n_ops, _DEGREE + 1) factors of the polynomials."""
        # keys of ops that other programs describe leave out their work
        keys: list[tuple[Hashable, ...]] = [
            (machine.fingerprint, op.key, op.flops, op.bytes_moved, tuple(spec.shape for spec in op.outputs))
            for op in ops
        ]
        kept = self._kept  # threads may put another one in its place meanwhile
        found = {key: kept[key] for key in keys if key in kept}
        new = {key: op for key, op in zip(keys, ops, strict=True) if key not in found}
        if new:
            logs = self._trees.log_seconds(list(new.values()), machine, fitted)
            found |= dict(zip(new, np.linalg.lstsq(powers, logs.T, rcond=None)[0].T, strict=True))
            self._kept = {**kept, **found} if len(kept) <= _MOST_KEPT else found
        return np.array([found[key] for key in keys])

    def __deepcopy__(self, memo: object) -> Prior:
        """This object: what it forecasts never changes."""
        return self

    def to_files(self) -> dict[str, bytes]:
        """The trees, and a JSON document."""
        document = {
            "schema": SCHEMA, "shape": asdict(self._trees.shape), "features": self._features,
            "transfer": self.transfer.to_json(),
        }  # fmt: skip
        return {"prior.json": json_bytes(document), **self._trees.to_files("prior")}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "prior.json")
        with reading("prior.json"):
            check_schema(document, SCHEMA)
            shape, features = Shape(**member(document, "shape", dict)), member(document, "features", int)
            transfer = MachineTransfer.from_json(document["transfer"])
        trees = PointTrees("xgboost", shape).from_files("prior", files, features=features)
        return cls(trees, features, transfer)


@cache
def shipped() -> Prior:
    """The prior that comes with this version; ArtefactError where its files are missing or damaged."""
    try:
        files = {path.name: path.read_bytes() for path in SHIPPED.iterdir() if path.suffix in (".json", ".ubj")}
    except OSError as error:
        raise ArtefactError(f"the prior of this installation cannot be read: {error}") from error
    return Prior.from_files(files)


def _some(cases: Sequence[Case]) -> tuple[Case, ...]:
    """At most `_MOST_CASES` of the cases, evenly over the logarithms of their threads."""
    logs = np.log([case.threads for case in cases])
    wanted = np.linspace(0.0, logs.max(), _MOST_CASES)
    return tuple(cases[i] for i in sorted(set(np.abs(logs - wanted[:, None]).argmin(axis=1).tolist())))


def _powers(cases: Sequence[Case], machine: Machine) -> Floats:
    """(n_cases, _DEGREE + 1) powers of log threads, as a share of the log of all cores.

    Least squares takes the smallest factors where there are fewer thread counts than powers.
    """
    share = np.log([case.threads for case in cases]) / max(np.log(len(machine)), 1.0)
    return np.vander(share, _DEGREE + 1)


def _amdahl(cases: Sequence[Case]) -> Floats:
    threads = np.array([case.threads for case in cases], dtype=np.float64)
    found: Floats = np.log(SERIAL + (1 - SERIAL) / threads)
    return found
