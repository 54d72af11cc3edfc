"""Ops of tables that have sizes alone, without shapes, FLOPs and bytes, are forecast by their sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from threadcast.core import Machine, Measurement, Op, Sample, Source
from threadcast.core.curve import Floats
from threadcast.core.errors import FeatureError
from threadcast.models.artefacts import json_bytes, npz_bytes, read_npz
from threadcast.models.joint_process import JointProcess
from threadcast.models.untrained import UntrainedModel

MACHINE = Machine.uniform("table", 8)
CASES = MACHINE.cases()


def op(*sizes: float, kind: str = "base") -> Op:
    return Op(kind, attributes=dict(zip("mk", sizes, strict=False)))


def seconds(*sizes: float) -> Floats:
    return math.prod(sizes) * 1e-5 * np.array([0.2 + 0.8 / case.threads for case in CASES])


def measured(*of: tuple[float, ...]) -> list[Measurement]:
    return [
        Measurement(op(*sizes), MACHINE, case, (Sample(float(time_s)),))
        for sizes in of
        for case, time_s in zip(CASES, seconds(*sizes), strict=True)
    ]


LINE = measured(*[(100.0 * i,) for i in range(1, 9)])
PLANE = measured(*[(m, k) for m in (64, 256, 512, 1024, 4096) for k in (32, 128, 300)])
MODELS = pytest.mark.parametrize(
    "fitted",
    [
        lambda known: JointProcess().fit(known),
        lambda known: JointProcess(prior=True).fit(known),
        lambda known: UntrainedModel(lambda: known),
        lambda known: JointProcess().from_files(JointProcess(prior=True).fit(known).to_files()),
    ],
    ids=["alone", "prior", "untrained", "stored"],
)


@MODELS
@pytest.mark.parametrize(
    ("known", "sizes", "source", "within"),
    [
        (LINE, (450,), Source.LEARNED, 1.05),
        (LINE, (130,), Source.LEARNED, 1.1),
        (LINE, (3000,), Source.EXTRAPOLATED, 1.5),
        (LINE, (7,), Source.EXTRAPOLATED, 2.5),
        (LINE, (1e8,), Source.EXTRAPOLATED, 20),
        (PLANE, (700, 200), Source.LEARNED, 1.1),
        (PLANE, (700, 9000), Source.EXTRAPOLATED, 2),
    ],
)
def test_times_follow_sizes_and_those_outside_of_what_was_measured_are_extrapolated(
    fitted: Callable[[list[Measurement]], JointProcess], known: list[Measurement], sizes: tuple[float, ...],
    source: Source, within: float,
) -> None:  # fmt: skip
    found, true = fitted(known).predict(op(*sizes), (), CASES, machine=MACHINE), seconds(*sizes)
    assert set(found.source) == {source}
    assert np.abs(np.log(found.seconds / true)).max() < np.log(within)
    assert (found.low <= true).all()
    assert (true <= found.high).all()


@MODELS
def test_sizes_that_no_op_can_have_are_refused(fitted: Callable[[list[Measurement]], JointProcess]) -> None:
    model = fitted(LINE)
    for size in (0, -5):
        with pytest.raises(FeatureError, match="must be a number above 0"):
            model.predict(op(size), (), CASES, machine=MACHINE)
    with pytest.raises(FeatureError, match="lacks 'm'"):
        model.predict(Op("base", attributes={"q": 3}), (), CASES, machine=MACHINE)


@pytest.mark.parametrize("kind", ["base", "other"])
def test_further_away_intervals_are_wider(kind: str) -> None:
    model = JointProcess().fit(LINE)
    asked = [op(450), *(op(size, kind=kind) for size in (3e3, 1e5, 1e8))]
    curves = [model.predict(one, (), CASES, machine=MACHINE) for one in asked]
    assert [curve.source[0] for curve in curves] == [Source.LEARNED, *[Source.EXTRAPOLATED] * 3]
    widths = [float(np.log(curve.high / curve.low).mean()) for curve in curves]
    assert widths == sorted(widths)
    assert widths[0] < 0.5 < 5 < widths[-1]


def test_what_was_stored_without_sizes_is_learned_anew() -> None:
    files = JointProcess().fit(LINE).to_files()
    document = json.loads(files["model.json"])
    del document["machines"][MACHINE.fingerprint]["features"]
    arrays = read_npz(files, "machines.npz")
    arrays["0.described"][:] = 0.0
    old = JointProcess().from_files({"model.json": json_bytes(document), "machines.npz": npz_bytes(arrays)})
    assert old.adapts_to(MACHINE)
    found = old.adapted(LINE).predict(op(450), (), CASES, machine=MACHINE)
    assert found.seconds == pytest.approx(seconds(450), rel=0.05)
