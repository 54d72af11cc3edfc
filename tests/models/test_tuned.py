"""Options are searched for among training ops alone, and what is stored is a model of the kind."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from threadcast.core import Machine
from threadcast.core.errors import InvalidInput, ModelError
from threadcast.models import registry_of_kinds
from threadcast.models.registry import ModelRegistry
from threadcast.models.tuned import Tuned

MACHINE = Machine.uniform("six", 6, group_size=6)
CASES = MACHINE.cases()
OPS = make_ops(60)
KNOWN = measure_all(OPS[:50], machine=MACHINE)


@pytest.fixture(scope="module")
def tuned():
    return Tuned("static_xgboost", trials=4, trees=5).fit(KNOWN)


def seconds(model):
    return model.predict_many(OPS[50:], [()] * 10, CASES, machine=MACHINE).seconds


def test_it_is_the_kind_with_the_chosen_options_and_those_given(tuned):
    assert set(tuned.chosen) == {"rate", "depth"}, "five trees need a higher rate than the default"
    plain = registry_of_kinds.create("static_xgboost", trees=5, **tuned.chosen).fit(KNOWN)
    np.testing.assert_array_equal(seconds(tuned), seconds(plain))
    assert tuned.notes[0].startswith("tuned: ")


def test_the_search_is_repeatable(tuned):
    again = Tuned("static_xgboost", trials=4, trees=5).fit(KNOWN)
    assert again.chosen == tuned.chosen


def test_it_is_stored_as_a_model_of_its_kind(tuned, tmp_path):
    registry = ModelRegistry(tmp_path / "models")
    version = registry.save(tuned, trained_on={}, metrics={})
    loaded = registry.load(version)
    assert version == "static_xgboost@1"
    assert not isinstance(loaded, Tuned)
    np.testing.assert_array_equal(seconds(loaded), seconds(tuned))
    np.testing.assert_array_equal(seconds(Tuned("static_xgboost").from_files(tuned.to_files())), seconds(tuned))


def test_options_that_are_given_are_not_searched():
    measured = measure_all(OPS[:12], machine=MACHINE)
    narrow = Tuned("learned_curve", trials=1, samples=5, trees=60, depth=8, seed=1)
    assert set(narrow.fit(measured).chosen) <= {"rate"}


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(InvalidInput, match="amdahl has no options to search for"):
        Tuned("amdahl")
    with pytest.raises(InvalidInput, match="no options to search for"):
        Tuned("static_xgboost", trees=10, depth=3, rate=0.1)
    with pytest.raises(InvalidInput, match="trials=0"):
        Tuned("static_xgboost", trials=0)
    with pytest.raises(ModelError):
        Tuned("static_xgboost", trials=1).fit(measure_all(OPS[:1], machine=MACHINE))
