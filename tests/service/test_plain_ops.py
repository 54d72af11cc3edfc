"""Ops in the plainest form are read as `Op.from_json` reads them, and no other documents are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from threadcast.core import Op
from threadcast.service.plain_ops import plain_ops

MOST_WORK = 1e24
SHAPES = st.lists(st.integers(0, 5_000), max_size=4)
TENSORS = st.lists(st.builds(lambda shape: [shape], SHAPES), max_size=3)
WORK = st.one_of(st.integers(0, 10**15), st.floats(0, 1e20))
KINDS = st.one_of(st.sampled_from(["mm", "aten.addmm", "my-op 2"]), st.text(min_size=1, max_size=8))


PLAIN: dict[str, Any] = {"kind": "mm", "inputs": [[[2, 3]], [[3, 4]]], "outputs": [[[2, 4]]], "flops": 48, "bytes": 104}


def _document(kind: str, inputs: list[Any], outputs: list[Any] | None, flops: float, moved: float) -> dict[str, Any]:
    given = {} if outputs is None else {"outputs": outputs}
    return {"kind": kind, "inputs": inputs, **given, "flops": flops, "bytes": moved}


PLAIN_KINDS = st.sampled_from(["mm", "aten.addmm", "my-op 2"])
DOCUMENTS = st.builds(_document, PLAIN_KINDS, TENSORS, st.none() | TENSORS, WORK, WORK)


@given(st.lists(DOCUMENTS, min_size=1, max_size=8))
def test_plain_ops_are_those_of_their_documents(documents: list[dict[str, Any]]) -> None:
    found = plain_ops(documents, most_work=MOST_WORK)
    assert found is not None
    for op, document in zip(found, documents, strict=True):
        expected = Op.from_json(document)
        assert (op.key, op.to_json()) == (expected.key, expected.to_json())
        assert (op.inputs, op.outputs) == (expected.inputs, expected.outputs)
        assert (type(op.flops), type(op.bytes_moved)) == (float, float)


@given(kind=KINDS, inputs=TENSORS, outputs=st.none() | TENSORS, flops=WORK, moved=WORK)
def test_odd_names_alone_make_an_op_other_than_plain(
    kind: str, inputs: list[Any], outputs: list[Any] | None, flops: float, moved: float
) -> None:
    document = _document(kind, inputs, outputs, flops, moved)
    found = plain_ops([document], most_work=MOST_WORK)
    if found is None:
        assert not (kind.isascii() and kind.isprintable()) or '"' in kind or "\\" in kind or kind != kind.strip()
    else:
        assert found[0].to_json() == Op.from_json(document).to_json()


@pytest.mark.parametrize("missing", ["inputs", "outputs"])
def test_tensors_that_are_not_given_are_none_as_the_long_way(missing: str) -> None:
    document = {name: value for name, value in PLAIN.items() if name != missing}
    (found,), expected = plain_ops([document], most_work=MOST_WORK) or (None,), Op.from_json(document)
    assert found is not None
    assert (found.key, found.inputs, found.outputs) == (expected.key, expected.inputs, expected.outputs)


@pytest.mark.parametrize("missing", ["kind", "flops", "bytes"])
def test_what_lacks_a_member_is_read_the_long_way(missing: str) -> None:
    lacking = {name: value for name, value in PLAIN.items() if name != missing}
    assert plain_ops([PLAIN, lacking], most_work=MOST_WORK) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": ""}, {"kind": 1}, {"kind": []}, {"kind": 'a"b'}, {"kind": "a\n"}, {"kind": "a" * 201}, {"flops": -1},
        {"flops": True}, {"flops": None}, {"flops": float("nan")}, {"flops": 1e25}, {"flops": 10**400}, {"bytes": "1"},
        {"attributes": {}}, {"id": "a"}, {"inputs": None}, {"inputs": {}}, {"inputs": [[2, 3]]}, {"inputs": [[]]},
        {"inputs": [[[2, 3], "float16"]]}, {"inputs": [[[True]]]}, {"inputs": [[[2.0]]]}, {"inputs": [[[-1]]]},
        {"inputs": [[[2**63]]]}, {"inputs": [[[0, 2**63]]]}, {"inputs": [[[2**40, 2**40]]]}, {"inputs": [[[1] * 65]]},
        {"inputs": [[[[1]]]]}, {"inputs": ()}, {"inputs": [[(2, 3)]]}, {"outputs": [3]}, {"outputs": None},
    ],
)  # fmt: skip
def test_one_of_another_form_has_all_read_the_long_way(changed: dict[str, Any]) -> None:
    assert plain_ops([PLAIN], most_work=MOST_WORK) is not None
    assert plain_ops([*[PLAIN], {**PLAIN, **changed}], most_work=MOST_WORK) is None


@pytest.mark.parametrize("documents", [None, "mm", [], [PLAIN, "mm-1"], [{}]])
def test_what_are_no_ops_is_read_the_long_way(documents: Any) -> None:
    assert plain_ops(documents, most_work=MOST_WORK) is None
