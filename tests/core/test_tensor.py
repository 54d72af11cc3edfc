from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import TensorSpec
from threadcast.core.errors import FormatError


@pytest.mark.parametrize(
    ("document", "spec"),
    [
        ([8, 3], TensorSpec((8, 3))),
        ([], TensorSpec(())),
        ([[8, 3]], TensorSpec((8, 3))),
        ([[]], TensorSpec(())),
        ([[8], "int64"], TensorSpec((8,), "int64")),
        ([[8, 3], "float16", None], TensorSpec((8, 3), "float16")),
        ([[8, 3], "float32", [1, 8]], TensorSpec((8, 3), "float32", (1, 8))),
    ],
)
def test_short_forms_are_read(document, spec):
    assert TensorSpec.from_json(document) == spec


@pytest.mark.parametrize(
    "document",
    [
        None, 3, "x", {}, [["a"]], [[-1]], [-1], [[True]], [True], [[1.5]], [[2], "float31"], [[2], 3], [[2], None],
        [[2], "float32", [1, 2]], [[2], "float32", ["a"]], [[2], "float32", "a"], [[2], "float32", [-1]],
        [[2], "float32", 7], [[2], "float32", [1], 4], [[2], [3]],
    ],
)  # fmt: skip
def test_what_is_no_tensor_is_refused_with_its_place(document):
    with pytest.raises(FormatError) as caught:
        TensorSpec.from_json(document, pointer="/ops/0/inputs/1")
    assert caught.value.pointer == "/ops/0/inputs/1"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda x: st.lists(x, max_size=4)))
def test_any_json_is_a_tensor_or_a_format_error(document):
    try:
        spec = TensorSpec.from_json(document)
    except FormatError:
        return
    assert TensorSpec.from_json(spec.to_json()) == spec


def test_row_major_strides_are_the_same_as_none():
    assert TensorSpec((2, 3, 4), "float32", (12, 4, 1)) == TensorSpec((2, 3, 4))
    assert TensorSpec((2, 3, 4), "float32", (12, 1, 3)) != TensorSpec((2, 3, 4))


def test_size_counts_a_broadcast_side_once():
    assert TensorSpec((64, 1000)).size_bytes == 256_000
    assert TensorSpec((64, 1000), "float32", (0, 1)).size_bytes == 4_000
    assert TensorSpec((64, 1000), "float32", (1, 64)).size_bytes == 256_000
    assert TensorSpec((0, 1000), "float32", (0, 1)).size_bytes == 0
    assert TensorSpec((), "bool").size_bytes == 1
    assert TensorSpec((3,), "complex128").size_bytes == 48
