"""The kinds of models that can be created by name; their modules are imported when one is created.

A third party registers in the same way as the built-in models:

    register("my_model", "my_package.my_module:MyModel")
    register("my_careful_model", MyModel, patience=3)
    register_regressor(MyRegressor("my_regressor"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from threadcast.core.by_name import ByName, check_importable, imported
from threadcast.core.errors import InvalidInput
from threadcast.models import regressors
from threadcast.models.base import PerformanceModel
from threadcast.models.regressors.contract import Regressor

Factory = Callable[..., PerformanceModel]


class _Kind(NamedTuple):
    factory: Factory | str
    options: dict[str, Any]


_kinds: ByName[_Kind] = ByName("model")


def register(name: str, factory: Factory | str, **options: Any) -> None:
    """Register a kind of model: `create(name)` then calls `factory` with `options`.

    A factory given as "package.module:attribute" is imported when it is first needed. InvalidInput where the name is in
    use.
    """
    if not name.isidentifier() or name != name.lower():
        raise InvalidInput(f"name={name!r}: a model's name is lower-case letters, digits and underscores")
    check_importable("factory", factory)
    _kinds.add(name, _Kind(factory, options))


def unregister(name: str) -> None:
    """Remove `name`; NotFound where there is no such name."""
    _kinds.remove(name)


def create(name: str, **options: Any) -> PerformanceModel:
    """Create an unfitted model; `options` take precedence over those that it was registered with.

    NotFound for an unknown name, InvalidInput for an unknown or wrong option.
    """
    kind = _kinds.find(name)
    factory = imported(kind.factory)
    try:
        return factory(**{**kind.options, **options})
    except TypeError as error:
        raise InvalidInput(f"options {options} do not suit the model {name!r}: {error}") from error


def takes(name: str, option: str) -> bool:
    """Whether `create(name)` accepts this option. NotFound for an unknown name."""
    return option in inspect.signature(imported(_kinds.find(name).factory)).parameters


def names() -> tuple[str, ...]:
    """Every name that `create` knows, in the order of registration."""
    return tuple(_kinds)


def register_regressor(regressor: Regressor) -> None:
    """Register the per-case model with this regressor, by the regressor's name."""
    register(regressor.name, "threadcast.models.per_case:PerCase", regressor=regressor)


register("roofline", "threadcast.models.roofline:Roofline")
register("hill_climb", "threadcast.models.hill_climb:HillClimb")
register("amdahl", "threadcast.models.scaling_law:Amdahl")
register("universal_scalability", "threadcast.models.scaling_law:UniversalScalability")
register("learned_curve", "threadcast.models.learned_curve:LearnedCurve")
register("joint_process", "threadcast.models.joint_process:JointProcess")
register("static_xgboost", "threadcast.models.static_regressor:StaticRegressor")
REGRESSORS = tuple(regressor.name for regressor in regressors.found())
"""The per-case models: the paper's ten regressors, counting SVR's and MLP's three each as one, and XGBoost."""

for _regressor in regressors.found():
    register_regressor(_regressor)
