"""Flops and bytes against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.core.strategies import ops
from threadcast.core import Op, TensorSpec


def tensors(*shapes: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(map(TensorSpec, shapes))


def flops(kind: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...] = ()) -> float:
    return Op(kind, inputs, {}, outputs).flops


@pytest.mark.parametrize(
    ("image", "weight", "output", "expected"),
    [
        # ResNet-50 at batch 1, 224 x 224: the stem, a 3x3 and a 1x1 of the first stage, the widest 1x1 of the last.
        ((1, 3, 224, 224), (64, 3, 7, 7), (1, 64, 112, 112), 2 * 64 * 112 * 112 * 3 * 7 * 7),
        ((1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56), 231_211_008),
        ((1, 64, 56, 56), (256, 64, 1, 1), (1, 256, 56, 56), 102_760_448),
        ((1, 512, 7, 7), (2048, 512, 1, 1), (1, 2048, 7, 7), 102_760_448),
        # depthwise (groups = channels): the weight has one input channel
        ((1, 32, 112, 112), (32, 1, 3, 3), (1, 32, 112, 112), 2 * 32 * 112 * 112 * 9),
    ],
)
def test_a_convolution_costs_two_flops_a_weight_and_output(image, weight, output, expected):
    assert flops("convolution", tensors(image, weight), tensors(output)) == expected
    assert flops("convolution", tensors(image, weight, (weight[0],)), tensors(output)) == expected


def test_each_gradient_of_a_convolution_costs_what_the_forward_pass_costs():
    image, weight, output = (8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56)
    forward = flops("convolution", tensors(image, weight), tensors(output))
    inputs = tensors(output, image, weight)
    assert flops("convolution_backward_input", inputs, tensors(image)) == forward == 8 * 231_211_008
    assert flops("convolution_backward_weight", inputs, tensors(weight)) == forward


def test_a_transposed_convolution_costs_what_the_convolution_that_it_undoes_costs():
    """DCGAN's generator: 512 x 4 x 4 up to 256 x 8 x 8 by 4 x 4 filters."""
    small, weight, large = (16, 512, 4, 4), (512, 256, 4, 4), (16, 256, 8, 8)
    up = flops("convolution_transposed", tensors(small, weight), tensors(large))
    assert up == flops("convolution", tensors(large, weight), tensors(small)) == 2 * 16 * 512 * 16 * 256 * 16
    inputs = tensors(large, small, weight)
    assert flops("convolution_transposed_backward_input", inputs, tensors(small)) == up
    assert flops("convolution_transposed_backward_weight", inputs, tensors(weight)) == up


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("kind", "inputs", "output", "expected"),
    [
        ("mm", ((64, 2048), (2048, 1000)), (64, 1000), 262_144_000),
        ("addmm", ((1000,), (64, 2048), (2048, 1000)), (64, 1000), 262_144_000),
        ("bmm", ((8, 64, 32), (8, 32, 16)), (8, 64, 16), 2 * 8 * 64 * 32 * 16),
        ("baddbmm", ((8, 64, 16), (8, 64, 32), (8, 32, 16)), (8, 64, 16), 2 * 8 * 64 * 32 * 16),
        ("mv", ((64, 32), (32,)), (64,), 2 * 64 * 32),
        ("linear", ((64, 10, 512), (2048, 512), (2048,)), (64, 10, 2048), 2 * 640 * 512 * 2048),
    ],
)
def test_a_matrix_product_costs_two_flops_a_multiply_add(kind, inputs, output, expected, known):
    assert flops(kind, tensors(*inputs), tensors(output) if known else ()) == expected


def test_attention_over_other_keys_counts_their_length():
    query, keys, rows = (2, 8, 100, 64), (2, 8, 30, 64), (2, 8, 100)
    product = 2 * 2 * 8 * 100 * 30 * 64
    forward = flops("scaled_dot_product_attention", tensors(query, keys, keys), tensors(query, rows))
    inputs = tensors(query, query, keys, keys, query, rows)
    backward = flops("scaled_dot_product_attention_backward", inputs, tensors(query, keys, keys))
    assert (forward, backward) == (2 * product, 5 * product)


def test_a_layer_of_an_encoder_costs_its_weights_for_each_token_and_attention():
    weights = ((768, 256), (768,), (256, 256), (256,), (256,), (256,), (1024, 256), (1024,), (256, 1024), (256,))
    expected = 2 * 4 * 64 * (4 * 256 * 256 + 2 * 256 * 1024) + 2 * 2 * 4 * 64 * 64 * 256
    assert flops("_transformer_encoder_layer_fwd", tensors((4, 64, 256), *weights), tensors((4, 64, 256))) == expected


def test_anything_else_costs_a_flop_an_element():
    op = Op("relu", tensors((64, 100)), {}, tensors((64, 100)))
    assert (op.flops, op.bytes_moved) == (6400, 2 * 25_600)
    assert op.intensity == 0.125


def test_a_look_up_reads_the_rows_that_it_returns_not_the_table():
    words = TensorSpec((20, 64), "int64")
    op = Op("embedding", (TensorSpec((10_000, 128)), words), {}, tensors((20, 64, 128)))
    assert op.bytes_moved == 2 * 20 * 64 * 128 * 4 + 20 * 64 * 8


def test_a_given_cost_replaces_the_analytic_one():
    op = Op("mm", tensors((2, 2), (2, 2)), {}, tensors((2, 2)), (7.0, None))
    assert (op.flops, op.bytes_moved) == (7.0, 48.0)


@given(ops)
def test_every_op_has_a_finite_cost(op):
    assert 0 <= op.flops < float("inf")
    assert 0 <= op.bytes_moved < float("inf")
