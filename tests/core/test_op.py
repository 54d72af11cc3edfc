from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given

from tests.core.strategies import ops
from threadcast.core import Op, TensorSpec
from threadcast.core.errors import FormatError, InvalidInput

CONVOLUTION = Op(
    "convolution",
    (TensorSpec((8, 64, 56, 56)), TensorSpec((64, 64, 3, 3), "float32", (576, 1, 192, 64))),
    {"stride": [1, 1], "padding": [1, 1], "groups": 1, "transposed": False, "name": "é"},
    (TensorSpec((8, 64, 56, 56)),),
)
GOLDEN_KEY = "convolution-a70a55cad699d3ef"
"""Keys name measurements in stores: if this changes, everything measured before is lost to its owners."""


def test_keys_do_not_change_between_versions():
    assert CONVOLUTION.key == GOLDEN_KEY


@given(ops)
def test_an_op_survives_json_and_pickle_with_its_key(op):
    for again in (
        Op.from_json(json.loads(json.dumps(op.to_json()))),
        pickle.loads(pickle.dumps(op)),
        copy.deepcopy(op),
    ):
        assert again == op
        assert hash(again) == hash(op)
        assert again.to_json() == op.to_json()


def test_identity_is_kind_inputs_and_attributes():
    shapes = (TensorSpec((4, 4)),)
    op = Op("relu", shapes)
    assert op == Op("relu", shapes, {}, shapes, (1.0, 2.0))
    others = [Op("tanh", shapes), Op("relu", (TensorSpec((4, 5)),)), Op("relu", shapes, {"a": 1}), "relu"]
    assert all(op != other for other in others)
    assert op != Op("relu", (TensorSpec((4, 4), "float32", (1, 4)),))


def test_forecasts_tell_ops_apart_by_what_their_key_leaves_out():
    shapes = (TensorSpec((4, 4)),)
    op = Op("relu", shapes)
    assert op.forecast_key == Op("relu", shapes).forecast_key
    counted = [Op("relu", shapes, cost=cost) for cost in ((1.0, None), (None, 1.0))]
    for other in (*counted, Op("relu", shapes, {}, shapes)):
        assert op == other
        assert op.forecast_key != other.forecast_key


@pytest.mark.parametrize("cost", [(-1.0, None), (None, float("inf")), (float("nan"), 1.0)])
def test_a_cost_is_finite_and_positive(cost):
    with pytest.raises(InvalidInput, match="must be finite and at least 0"):
        Op("relu", (), {}, (), cost)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": 3}, "/ops/4/kind"),
        ({"kind": ""}, "/ops/4/kind"),
        ({"inputs": 3}, "/ops/4/inputs"),
        ({"inputs": [[1], "x"]}, "/ops/4/inputs/1"),
        ({"outputs": [[[1], "float31"]]}, "/ops/4/outputs/0"),
        ({"attributes": []}, "/ops/4/attributes"),
        ({"flops": -1}, "/ops/4/flops"),
        ({"flops": True}, "/ops/4/flops"),
        ({"flops": 10**400}, "/ops/4/flops"),
        ({"bytes": float("nan")}, "/ops/4/bytes"),
        ({"bytes": None}, "/ops/4/bytes"),
    ],
)
def test_errors_point_at_the_wrong_member(change, pointer):
    with pytest.raises(FormatError) as caught:
        Op.from_json({"kind": "relu", "inputs": [[1]], **change}, pointer="/ops/4")
    assert caught.value.pointer == pointer
