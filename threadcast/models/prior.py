"""What is assumed of ops on machines where nothing was measured: a prior, learned from other machines and shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from threadcast.models.known_kinds import is_bare
from threadcast.models.machine_transfer import MachineTransfer, machines_left_out
from threadcast.models.measured import group, usable
from threadcast.models.point_trees import Points, PointTrees, Shape
from threadcast.models.smooth_curves import curves_of, fitted_factors

SCHEMA = "threadcast.prior/1"

SHIPPED = Path(__file__).parent / "shipped_prior"
"""The files of the prior that comes with this version; `benchmarks/shipped_prior.py` learns and judges it."""


class Prior:
    """Forecasts of ops on machines that nobody measured.

    Curves are those of `smooth_curves`, from boosted trees. `transfer` says how far the trees' forecasts were off on
    machines that they did not know.
    """

    def __init__(self, trees: PointTrees, transfer: MachineTransfer) -> None:
        self._trees, self.transfer = trees, transfer

    @classmethod
    def learned(cls, measurements: Sequence[Measurement], *, shape: Shape) -> Self:
        """Learn from measurements on several machines."""
        entries, _ = usable(group(measurements))
        points = Points.of(entries)
        transfer = MachineTransfer.learned(machines_left_out(entries, points, shape))
        return cls(points.trees(shape, slice(None)), transfer)

    def log_seconds(self, ops: Sequence[Op], machine: Machine, cases: Sequence[Case]) -> Floats:
        """(n_ops, n_cases) log seconds; of ops of tables, without tensors, by the trees' own curves: other machines
        tell more of them than a law of scaling."""
        if not ops:
            return np.empty((0, len(cases)))
        found = curves_of(fitted_factors(self._trees, ops, machine), machine, cases)
        alone = [i for i, op in enumerate(ops) if is_bare(op)]
        if alone:
            found[alone] = self._trees.log_seconds([ops[i] for i in alone], machine, cases)
        return found

    def __deepcopy__(self, memo: object) -> Prior:
        """This object: what it forecasts never changes."""
        return self

    def to_files(self) -> dict[str, bytes]:
        """The trees, and a JSON document."""
        document = {"schema": SCHEMA, "shape": asdict(self._trees.shape), "transfer": self.transfer.to_json()}
        return {"prior.json": json_bytes(document), **self._trees.to_files("prior")}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Load what `to_files` returned; ArtefactError on anything else."""
        document = read_json(files, "prior.json")
        with reading("prior.json"):
            check_schema(document, SCHEMA)
            shape = Shape(**member(document, "shape", dict))
            transfer = MachineTransfer.from_json(document["transfer"])
        return cls(PointTrees(shape).from_files("prior", files), transfer)


@cache
def shipped() -> Prior:
    """The prior that comes with this version; ArtefactError where its files are missing or damaged."""
    try:
        files = {path.name: path.read_bytes() for path in SHIPPED.iterdir() if path.suffix == ".json"}
    except OSError as error:
        raise ArtefactError(f"the prior of this installation cannot be read: {error}") from error
    return Prior.from_files(files)
