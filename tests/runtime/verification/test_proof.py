"""A plan that differs in one step by what may be chance has to agree in others; one that differs again is refused."""

from __future__ import annotations

import pytest

from threadcast.runtime.verification.differences import Difference
from threadcast.runtime.verification.proof import Proof

CHANCE, WRONG = Difference("w", "small", 1e-3, may_be_chance=True), Difference("w", "large", 1.0)


@pytest.mark.parametrize(
    ("steps", "fate"),
    [
        ("a", "proven"), ("w", "refused"), ("c", "open"), ("ca", "proven"), ("cccu", "open"), ("ccca", "proven"),
        ("cccc", "refused"), ("ccw", "refused"), ("cuuca", "proven"), ("uuuu", "shows nothing"),
        ("cuuuu", "shows nothing"),
    ],
)  # fmt: skip
def test_steps_prove_or_refuse_a_plan(steps: str, fate: str) -> None:
    proof, goes_on = Proof(untold_left=4), True
    for step in steps:
        assert goes_on
        assert not proof.over
        if step in "cw":
            goes_on = proof.doubted(CHANCE if step == "c" else WRONG)
        else:
            proof.agreed(tells=step == "a")
    assert proof.over == (fate != "open")
    assert goes_on == (fate != "refused")
