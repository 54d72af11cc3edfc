"""What is learned from and what is judged by never mix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.synthetic_ops import MACHINE, make_ops, measure_all
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models.measured import by_content, group
from threadcast.models.splits import Fold, new_kind, new_machine, new_network, new_shape

OPS = make_ops(9)
ENTRIES = group(measure_all(OPS))
NETWORKS = {
    **{op.key: {"first"} for op in OPS[:3]},
    **{op.key: {"second"} for op in OPS[3:5]},
    OPS[5].key: {"first", "second"},
    **{op.key: {"third"} for op in OPS[6:8]},
}  # the last op is in no known network


def keys(positions):
    return {ENTRIES[i].op.key for i in positions}


def test_an_op_shared_with_the_left_out_network_is_judged_by_and_not_learned_from():
    folds = {fold.name: fold for fold in new_network(NETWORKS)(ENTRIES)}
    assert set(folds) == {"first", "second", "third"}
    assert keys(folds["first"].test) == {op.key for op in (*OPS[:3], OPS[5])}
    assert keys(folds["first"].train) == {op.key for op in (*OPS[3:5], *OPS[6:])}


@given(st.dictionaries(st.sampled_from([op.key for op in OPS]), st.sets(st.sampled_from("abc")), min_size=1))
def test_no_fold_learns_from_an_op_of_the_network_it_judges_by(networks):
    try:
        folds = new_network(networks)(ENTRIES)
    except ModelError:
        return
    for fold in folds:
        assert all(fold.name in networks[key] for key in keys(fold.test))
        assert not any(fold.name in networks.get(key, ()) for key in keys(fold.train))
        assert len(fold.train) + len(fold.test) == len(ENTRIES)


def test_many_kinds_are_left_out_several_together_each_once():
    folds = new_kind(folds=2)(ENTRIES)
    assert sorted(kind for fold in folds for kind in fold.name.split(", ")) == ["add", "mm", "softmax"]
    assert sorted(i for fold in folds for i in fold.test) == list(range(len(ENTRIES)))
    for fold in folds:
        assert {ENTRIES[i].op.kind for i in fold.test} == set(fold.name.split(", "))
        assert not set(fold.name.split(", ")) & {ENTRIES[i].op.kind for i in fold.train}
    known = new_kind(folds=2, known=2)(ENTRIES)
    assert [len(fold.train) for fold in known] == [
        len(fold.train) + 2 * len(fold.name.split(", ")) for fold in new_kind(folds=2)(ENTRIES)
    ]


def test_each_shape_is_left_out_once_on_all_its_machines():
    other = Machine.uniform("other", 2)
    entries = group([*measure_all(OPS), *measure_all(OPS, machine=other)])
    folds = new_shape(folds=4)(entries)
    tested = [i for fold in folds for i in fold.test]
    assert sorted(tested) == list(range(18))
    for fold in folds:
        assert not {entries[i].op.key for i in fold.train} & {entries[i].op.key for i in fold.test}
        assert {entries[i].machine for i in fold.test} == {MACHINE, other}


def renamed(kind, machine):
    """Ops of a table, under names that the table's file may give."""
    ops = [Op(kind, attributes={"m": m, "label": f"{kind} m={m}"}) for m in range(20)]
    there = Machine.uniform(machine, 4)
    return group([Measurement(op, there, Case(n), (Sample(1 + i / n),)) for i, op in enumerate(ops) for n in (1, 2)])


def test_parts_depend_on_what_describes_ops_and_not_on_the_names_of_files():
    parts = set()
    for name in ("a", "b", "runs of monday", "zz"):
        entries = renamed(name, name)
        parts.add(tuple(tuple(entries[i].op.attributes["m"] for i in fold.test) for fold in new_shape()(entries)))
        of_key = {entry.op.key: entry.op.attributes["m"] for entry in entries}
        assert [of_key[key] for key in by_content(entries)][:6] == [8, 16, 4, 17, 10, 11]
    assert len(parts) == 1


def test_some_ops_of_what_is_left_out_can_be_learned_from():
    for split in (new_kind, new_machine):
        entries = group([*measure_all(OPS), *measure_all(OPS, machine=Machine.uniform("other", 2))])
        plain, some = split()(entries), split(known=2)(entries)
        for before, after in zip(plain, some, strict=True):
            assert len(after.train) == len(before.train) + 2
            assert set(after.test) < set(before.test)
    assert new_kind(known=2, seed=1)(entries) != new_kind(known=2, seed=2)(entries)


def test_a_part_that_would_be_known_whole_is_not_left_out():
    kinds = {entry.op.kind for entry in ENTRIES}
    with pytest.raises(ModelError, match="two op kinds"):
        new_kind(known=len(ENTRIES))(ENTRIES)
    assert {fold.name for fold in new_kind(known=2)(ENTRIES)} <= kinds
    with pytest.raises(InvalidInput, match="known=-1"):
        new_kind(known=-1)(ENTRIES)
    with pytest.raises(InvalidInput, match="folds=1"):
        new_kind(folds=1)


def test_more_folds_than_ops_leave_one_out():
    assert len(new_shape(folds=50)(ENTRIES)) == len(ENTRIES)


def test_one_network_can_be_left_out_where_there_are_ops_of_none():
    (fold,) = new_network({OPS[0].key: ["only"]})(ENTRIES)
    assert (fold.name, keys(fold.test)) == ("only", {OPS[0].key})


def test_a_table_that_does_not_allow_the_split_is_refused():
    with pytest.raises(ModelError, match="two networks; there are: none"):
        new_network({})(ENTRIES)
    with pytest.raises(ModelError, match="two networks; there are: only"):
        new_network({op.key: ["only"] for op in OPS})(ENTRIES)
    with pytest.raises(ModelError, match="two op kinds; there are: mm"):
        new_kind()([entry for entry in ENTRIES if entry.op.kind == "mm"])


def test_folds_that_leak_or_are_empty_cannot_be_made():
    with pytest.raises(InvalidInput, match="learns from"):
        Fold("leak", (0, 1), (1, 2))
    with pytest.raises(InvalidInput, match="0 ops"):
        Fold("empty", (), (1,))
    with pytest.raises(InvalidInput, match="folds=1"):
        new_shape(folds=1)


@pytest.mark.parametrize(
    ("split", "part"),
    [(new_kind(), lambda entry: entry.op.kind), (new_machine(), lambda entry: entry.machine.fingerprint)],
)
def test_each_kind_or_machine_is_left_out_once(split, part):
    entries = group([*measure_all(OPS), *measure_all(OPS, machine=Machine.uniform("other", 2))])
    folds = split(entries)
    assert [fold.name for fold in folds] == sorted({part(entry) for entry in entries})
    for fold in folds:
        assert {part(entries[i]) for i in fold.test} == {fold.name}
        assert fold.name not in {part(entries[i]) for i in fold.train}
