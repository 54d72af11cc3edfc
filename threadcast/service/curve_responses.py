"""What responses of `GET /v1/curves/{op}` are kept by, and what is kept."""

from __future__ import annotations

from typing import NamedTuple

from threadcast.service.answers import JSON


class CurveId(NamedTuple):
    """Everything that determines a curve."""

    machine: str
    """Fingerprint."""
    model: str
    """"name@number"."""
    op: str
    """Key."""
    last: int
    """Number of the store's newest measurement."""
    measured: int = 0
    """What the model was adapted to (`AdaptedModels`)."""
    changes: int = 0
    """What is known of the machine's changes (`MachineChanges.stamp`)."""
    form: str = JSON
    """Media type."""


class CurveResponse(NamedTuple):
    """The body of a response, its entity tag and the number of points in it."""

    content: bytes
    etag: str
    points: int
