"""XGBoost's trees: grown, asked, stored, and loaded from untrusted bytes.

XGBoost ends the process on damaged models, or reads beyond its arrays. So every number that it would use as a position
is checked first, and XGBoost reads what was checked, written anew.
"""

from __future__ import annotations

import atexit
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from threadcast.core.curve import Floats
from threadcast.core.errors import ArtefactError
from threadcast.core.json_reading import parse
from threadcast.models.artefacts import reading
from threadcast.models.xgboost_library import xgboost_library

_ROOT = 2**31 - 1
"""The number that XGBoost stores as the parent of a tree's root."""

_WHOLE = ("left_children", "right_children", "parents", "split_indices", "default_left", "split_type")
_REAL = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")
"""A tree's arrays of whole and of other numbers, one entry a node."""

_EMPTY = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
"""A tree's arrays for categorical features, which must be empty."""


class BoostedTrees:
    """Grown trees, which never change; several threads may ask them at once, each in one thread."""

    def __init__(self, booster: Any) -> None:
        booster.set_param({"nthread": 1})
        self._booster = booster
        _boosters.add(booster)

    @classmethod
    def grown(cls, features: NDArray[Any], targets: Floats, *, weights: Floats | None = None, **options: Any) -> Self:
        """Trees that learned targets (n_points,) from features (n_points, n_features); XGBoost knows the `options`."""
        made = xgboost_library().XGBRegressor(subsample=0.8, max_bin=256, tree_method="hist", n_jobs=1, **options)
        return cls(made.fit(features, targets, sample_weight=weights).get_booster())

    def forecast(self, features: NDArray[Any]) -> Floats:
        """Forecasts (...) from features (..., n_features); NaN are missing values."""
        found: Floats = self._booster.inplace_predict(features.reshape(-1, features.shape[-1])).astype(np.float64)
        return found.reshape(features.shape[:-1])

    def __deepcopy__(self, memo: object) -> BoostedTrees:
        """This object: what it forecasts never changes."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return BoostedTrees, (self._booster,)

    def stored(self, names: Sequence[str]) -> bytes:
        """The trees as XGBoost's JSON, with the names of their features."""
        self._booster.feature_names = [*names]
        return bytes(self._booster.save_raw("json"))

    @classmethod
    def load(cls, data: bytes, *, features: Sequence[str]) -> Self:
        """Load stored trees of squared error on numeric features.

        `features` are the names of those that they will be given: they find their own by their names, wherever they
        were when stored. ArtefactError on anything else.
        """
        xgboost = xgboost_library()
        with reading("an XGBoost model"):
            document = parse(data, what="it")
            _place(document, features)
            try:
                return cls(xgboost.Booster(model_file=bytearray(json.dumps(document).encode())))
            except xgboost.core.XGBoostError as error:
                raise ArtefactError(f"not a model of XGBoost: {str(error).splitlines()[0]}") from error


_boosters: weakref.WeakSet[Any] = weakref.WeakSet()


@atexit.register
def _leave_to_the_system() -> None:
    """Let the end of the process free all trees: XGBoost would fail to, with a message, once its library is gone."""
    for booster in _boosters:
        booster.handle = None


def stays_inside(left: NDArray[Any], right: NDArray[Any], feature: NDArray[Any], features: int) -> bool:
    """Whether following a tree always ends in a leaf: both children of each inner node come after it and exist, and
    every split is on one of `features`. Leaves have the children -1."""
    nodes, inner = len(left), left != -1
    here = np.arange(nodes)
    ahead = all(bool(np.all(((child > here) & (child < nodes))[inner])) for child in (left, right))
    known = bool(np.all(((feature >= 0) & (feature < features))[inner]))
    return nodes > 0 and ahead and known and bool(np.all(right[~inner] == -1))


def _place(document: dict[str, Any], names: Sequence[str]) -> None:
    """Check a document, and have its trees read the features with these names."""
    learner = document["learner"]
    own = learner["feature_names"]
    if not isinstance(own, list) or len({*own}) != len(own) or not own:
        raise ArtefactError("an XGBoost model whose features have no names of their own: train it again")
    if unknown := [name for name in own if name not in names]:
        raise ArtefactError(f"an XGBoost model that learned from {unknown[0]!r}, which this version does not compute")
    _check(document, len(own))
    learner["feature_names"], learner["feature_types"] = [*names], []
    if own == [*names]:
        return
    at = [names.index(name) for name in own]
    learner["learner_model_param"]["num_feature"] = str(len(names))
    for tree in learner["gradient_booster"]["model"]["trees"]:
        tree["tree_param"]["num_feature"] = str(len(names))
        pairs = zip(tree["split_indices"], tree["left_children"], strict=True)
        tree["split_indices"] = [at[column] if left != -1 else 0 for column, left in pairs]


def _check(document: Mapping[str, Any], features: int) -> None:
    learner = document["learner"]
    booster, objective = learner["gradient_booster"], learner["objective"]["name"]
    shape = {key: int(learner["learner_model_param"][key]) for key in ("num_feature", "num_class", "num_target")}
    if shape != {"num_feature": features, "num_class": 0, "num_target": 1}:
        raise ArtefactError(f"an XGBoost model of {shape}, expected {features} features and one target")
    if (booster["name"], objective) != ("gbtree", "reg:squarederror"):
        raise ArtefactError(f"an XGBoost model with {booster['name']} and {objective}, not gbtree and reg:squarederror")
    model = booster["model"]
    trees, counts = model["trees"], model["gbtree_model_param"]
    one_a_round = list(model["iteration_indptr"]) == list(range(len(trees) + 1)) and not any(model["tree_info"])
    sizes = (int(counts["num_trees"]), int(counts["num_parallel_tree"]), len(model["tree_info"]))
    if not one_a_round or sizes != (len(trees), 1, len(trees)):
        raise ArtefactError(f"an XGBoost model whose {len(trees)} trees are not one a round for one target")
    if any(len(part) for part in model.get("cats", {}).values()):
        raise ArtefactError("an XGBoost model with categories")
    for number, tree in enumerate(trees):
        if not _is_sound(tree, number, features):
            raise ArtefactError("an XGBoost model with a tree whose nodes point outside it")


def _is_sound(tree: Mapping[str, Any], number: int, features: int) -> bool:
    sizes = {key: int(value) for key, value in tree["tree_param"].items()}
    nodes = sizes["num_nodes"]
    expected = {"num_nodes": nodes, "num_feature": features, "size_leaf_vector": 1, "num_deleted": 0}
    if sizes != expected or tree["id"] != number or set(tree) != {*_WHOLE, *_REAL, *_EMPTY, "tree_param", "id"}:
        return False
    found = {name: np.array(tree[name]) for name in (*_WHOLE, *_REAL)}
    if any(array.shape != (nodes,) for array in found.values()) or any(tree[name] != [] for name in _EMPTY):
        return False
    whole, left, right = (found[name] for name in _WHOLE), found["left_children"], found["right_children"]
    if any(array.dtype != np.int64 or (array != array.astype(np.int32)).any() for array in whole):
        return False
    if any(found[name].dtype.kind not in "if" for name in _REAL) or not set(tree["default_left"]) <= {0, 1}:
        return False
    if any(tree["split_type"]) or not stays_inside(left, right, found["split_indices"], features):
        return False
    inner = np.flatnonzero(left != -1)
    parents = np.full(nodes, _ROOT)
    parents[left[inner]] = parents[right[inner]] = inner
    return np.array_equal(parents, found["parents"])
