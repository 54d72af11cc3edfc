"""What a model says of ops that are described otherwise than those that it has learned."""

from __future__ import annotations

from typing import Any

import pytest

from threadcast.core import Case, Machine, Measurement, Op, Sample, Source, TensorSpec
from threadcast.core.errors import ArtefactError, FeatureError
from threadcast.models.known_kinds import KnownKinds
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.nominal_roofline import CALL_S
from threadcast.models.static_regressor import StaticRegressor

MACHINE = Machine.uniform("four", 4)
RELU = Op("relu", (TensorSpec((8, 8)),))


def product(kind: str = "mm", **features: Any) -> Op:
    return Op(kind, attributes={"label": "x", **features})


def measured(op: Op, seconds: float = 1e-3) -> list[Measurement]:
    return [Measurement(op, MACHINE, Case(n), (Sample(seconds / n),)) for n in (1, 2, 4)]


TABLE = [
    product(m=64 * i, k=32, n=16 + i, lib="mkl" if i % 2 else "blis", **({"depth": i} if i > 2 else {}))
    for i in range(1, 9)
]
ENTRIES = group(m for i, op in enumerate([*TABLE, RELU]) for m in measured(op, 1e-3 * (i + 1)))
KNOWN = KnownKinds.learned(ENTRIES)
OK: dict[str, Any] = {"m": 100, "k": 32, "n": 20, "lib": "mkl"}


@pytest.mark.parametrize(
    ("op", "known"),
    [
        (product(**OK), Source.LEARNED),
        (product(**OK, depth=5), Source.LEARNED),
        (RELU, Source.LEARNED),
        (product(**{**OK, "m": 100.0}), Source.LEARNED),
        (product(**{**OK, "m": 4096}), Source.EXTRAPOLATED),
        (product(**{**OK, "lib": "eigen"}), Source.EXTRAPOLATED),
        (product(**OK, batch=8), Source.EXTRAPOLATED),
        (Op("mm", attributes=OK, cost=(1e9, 0.0)), Source.EXTRAPOLATED),
        (product("matmul", **OK), None),
        (product("relu", m=1), None),
        (Op("mm", (TensorSpec((8, 8)), TensorSpec((8, 8)))), None),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_ops_are_known_by_kind_names_and_values(op: Op, known: Source | None, stored: bool) -> None:
    kinds = KnownKinds.from_json(KNOWN.to_json()) if stored else KNOWN
    assert kinds.knows(op) == known


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"m": 100, "k": 32, "lib": "mkl"}, r"by depth, k, lib, m, n; this one lacks 'n'\."),
        ({"M": 100, "K": 32, "N": 20, "lib": "mkl"}, r"'k' \(it has 'K'\), 'm' \(it has 'M'\), 'n' \(it has 'N'\)"),
        ({**OK, "dept": 5}, r"lacks 'depth' \(it has 'dept'\)"),
        ({**OK, "m": None}, "lacks 'm'"),
        ({**OK, "m": float("inf")}, "lacks 'm'"),
        ({**OK, "m": "100"}, "m='100' must be a number above 0"),
        ({**OK, "n": 0}, "n=0.0 must be a number above 0"),
        ({}, "lacks 'k', 'lib', 'm', 'n'"),
    ],
)
def test_features_that_lack_or_are_misspelt_are_named(features: dict[str, Any], said: str) -> None:
    with pytest.raises(FeatureError, match=said):
        KNOWN.knows(product(**features))


@pytest.mark.parametrize("model", [StaticRegressor(trees=4), LearnedCurve(samples=1, trees=4)])
def test_models_store_what_they_know(model: StaticRegressor | LearnedCurve) -> None:
    fitted = model.fit([m for entry in ENTRIES for m in entry.by_case.values()])
    loaded = type(model)().from_files(fitted.to_files())
    for one in (fitted, loaded):
        assert (one.knows(product(**OK)), one.knows(product("matmul"))) == (Source.LEARNED, None)
        assert one.least_s == CALL_S
        with pytest.raises(FeatureError, match="lacks 'n'"):
            one.knows(product(m=100, k=32, lib="mkl"))


def test_the_shortest_learned_time_is_believed() -> None:
    assert KnownKinds.learned(group(measured(TABLE[0], 1e-7))).least_s == 1e-7 / 4


def test_models_that_have_learned_nothing_know_everything() -> None:
    assert KnownKinds().knows(product("matmul")) is Source.LEARNED
    assert KnownKinds.from_json(KnownKinds().to_json()) == KnownKinds()


@pytest.mark.parametrize("ranges", [{"m": [1]}, {"k": [1, 2]}, {"m": [1, None]}])
def test_damaged_kinds_are_refused(ranges: dict[str, Any]) -> None:
    document = KNOWN.to_json()
    document["without"]["mm"] |= {"every": ["m"], "texts": {}, "ranges": ranges}
    with pytest.raises((ArtefactError, ValueError)):
        KnownKinds.from_json(document)
