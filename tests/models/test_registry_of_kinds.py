"""Kinds of models by name."""

import subprocess
import sys

import pytest

from threadcast.core.errors import InvalidInput, NotFound
from threadcast.models import registry_of_kinds
from threadcast.models.hill_climb import HillClimb


def test_every_kind_of_the_paper_can_be_made_by_name():
    assert len(registry_of_kinds.REGRESSORS) == 15
    for name in registry_of_kinds.names():
        assert registry_of_kinds.create(name).name == name


def test_options_reach_the_model_and_go_before_those_registered():
    registry_of_kinds.register("coarse_climb", HillClimb, interval=16)
    try:
        assert registry_of_kinds.create("coarse_climb").interval == 16
        assert registry_of_kinds.create("coarse_climb", interval=8).interval == 8
        with pytest.raises(InvalidInput, match="registered already"):
            registry_of_kinds.register("coarse_climb", HillClimb)
    finally:
        registry_of_kinds.unregister("coarse_climb")
    assert "coarse_climb" not in registry_of_kinds.names()


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(NotFound, match="did you mean 'hill_climb'"):
        registry_of_kinds.create("hill_clim")
    with pytest.raises(NotFound):
        registry_of_kinds.unregister("nothing like it")


def test_an_unknown_option_is_named():
    with pytest.raises(InvalidInput, match="patience"):
        registry_of_kinds.create("hill_climb", patience=3)


@pytest.mark.parametrize("name", ["", "Upper", "with space", "a-b", "../up"])
def test_names_that_could_not_be_files_are_refused(name):
    with pytest.raises(InvalidInput, match="name="):
        registry_of_kinds.register(name, HillClimb)


def test_a_factory_that_names_no_attribute_is_refused():
    with pytest.raises(InvalidInput, match="module:attribute"):
        registry_of_kinds.register("mine", "my_package.my_module")


def test_importing_and_listing_models_imports_no_learning_library():
    code = (
        "import sys, threadcast.models.registry_of_kinds as kinds, threadcast.models.registry; kinds.names();"
        "heavy = {'sklearn', 'xgboost', 'pandas', 'torch', 'scipy', 'joblib'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""
