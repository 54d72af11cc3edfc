"""The forms of a call's graph for which plans are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from threadcast.core import OpGraph


class MemoryFormat(StrEnum):
    """How the numbers of images and of convolution weights are ordered in memory."""

    AS_GIVEN = "as given"
    """As the caller made them."""
    CHANNELS_LAST = "channels last"
    """All channels of a pixel beside each other; most convolutions are faster with it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a call's graph, for which plans are made: its memory format, and whether operators are fused."""

    memory_format: MemoryFormat
    fused: bool = False

    def __str__(self) -> str:
        return f"{self.memory_format}, fused" if self.fused else str(self.memory_format)


def same_structure(one: OpGraph, other: OpGraph) -> bool:
    """Return whether both graphs are the same but for tensors' shapes, so that a plan of one is a plan of the other."""
    if one.ids != other.ids or one.edges != other.edges:
        return False
    return all(mine.kind == theirs.kind for mine, theirs in zip(one.ops, other.ops, strict=True))
